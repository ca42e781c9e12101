package embedded

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
)

const (
	// mostOfOne is how many connections one holder of credentials has left by Shed. An agent has three,
	// and for some minutes those that were lost without a word.
	mostOfOne = 32
	shedEvery = 5 * time.Second
)

// Shed closes the oldest connections of each agent that has too many, and of every holder of credentials while
// more than half of all connections are in use, and returns their number. NATS bounds those of an account, and all
// agents are in one: a single one could hold all, each with up to 64 MB that it does not read.
func (s *Server) Shed() (closed int) {
	n := s.NumClients()
	v, err := s.Varz(nil)
	if err != nil || n <= s.most/2 && v.TotalConnections-s.looked.Load() < mostOfOne { // no one can have made too many
		return 0
	}
	// At once: NATS makes the list of all, and decodes their JWTs, for each part of it.
	all, err := s.Connz(&server.ConnzOptions{Username: true, Sort: server.ByCid, Limit: 2 * n})
	if err != nil {
		return 0
	}
	of := map[string]int{} // connections, by public key
	excess := map[string]Refusal{}
	s.looked.Store(v.TotalConnections)
	for _, c := range slices.Backward(all.Conns) {
		if c.IssuerKey == "" { // it has a few seconds to say who it is
			s.looked.Add(^uint64(0))
			continue
		}
		// Not c.AuthorizedUser: that is any text, if the client sends one with its JWT.
		claims, err := jwt.DecodeUserClaims(c.JWT) // NATS has checked who signed it
		if err != nil || n <= s.most/2 && !strings.HasPrefix(claims.Name, string(authority.Agent)+".") {
			continue
		}
		key := claims.Subject
		if of[key]++; of[key] > mostOfOne && s.DisconnectClientByID(c.Cid) == nil {
			closed++
			excess[key] = Refusal{Client: claims.Name, From: c.IP, Operation: "connect"}
		}
	}
	for key, r := range excess {
		r.Reason = fmt.Sprintf("it had %d connections: the oldest were closed", of[key])
		s.refused(r)
	}
	return closed
}

// watchConnections calls Shed until the server is closed, for a tenth of the time at most.
func (s *Server) watchConnections() {
	next := time.NewTimer(shedEvery)
	defer next.Stop()
	for {
		select {
		case <-s.ended:
			return
		case <-next.C:
			begun := time.Now()
			s.Shed()
			next.Reset(max(shedEvery, 9*time.Since(begun)))
		}
	}
}
