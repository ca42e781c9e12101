// Package report formats the agent's data as text for people: tables, one incident in
// full with its picture, the agent's status, a diagnosis.
//
// Every function writes complete lines to its writer and returns the writer's error. Style
// describes the output; its zero value writes plain UTF-8 without colours, in UTC. Names
// from the machine (cgroups can have any name) are escaped if they would move the cursor.
package report
