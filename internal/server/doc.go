// Package server is the cluster's side of quell: it takes agents' messages into
// the store, learns specs from all of it, and answers people over HTTP.
//
// What it is fed through are small interfaces of its own (Feed, Publisher,
// Commander, Asker), so that it runs in a test without NATS and DuckDB.
//
// The routes of the API are one table, api.go's: what is served, who may ask,
// and the OpenAPI document at /openapi.json all come from it.
package server
