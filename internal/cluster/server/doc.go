// Package server is the cluster's side of quell: it stores the agents' messages, learns
// specs from all of them, and answers users over HTTP.
//
// Its inputs are small interfaces (Feed, Publisher, Decider, Querier), so that tests run
// it without NATS and DuckDB.
//
// The routes of the API are one table in api.go. The handlers, the access rules and the
// OpenAPI document at /openapi.json are all derived from it.
package server
