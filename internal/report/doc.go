// Package report turns what the agent knows into text for people: tables,
// one incident in full with its picture, the agent's status, a diagnosis.
//
// Every function writes whole lines to its writer and returns the writer's
// error. Style says what the text is for; its zero value writes plain UTF-8
// without colours, in UTC. Names that come from the machine (cgroups can be
// called anything) are escaped where they would move the cursor.
package report
