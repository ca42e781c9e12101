package embedded

import (
	"fmt"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
)

const (
	// mostOfOne is how many connections one holder of credentials has left by Shed. An agent has three,
	// and for some minutes those that were lost without a word.
	mostOfOne = 32
	shedEvery = 5 * time.Second
)

// Shed closes the newest connections of each holder that has too many, while more than half of all
// connections are in use, and returns their number. NATS bounds those of an account, and all agents are in
// one: a single one could hold all.
func (s *Server) Shed() (closed int) {
	n := s.NumClients()
	if n <= s.most/2 {
		return 0
	}
	// At once: NATS makes the list of all, and decodes their JWTs, for each part of it.
	all, err := s.Connz(&server.ConnzOptions{Username: true, Sort: server.ByCid, Limit: 2 * n})
	if err != nil {
		return 0
	}
	of := map[string]int{} // connections, by public key
	excess := map[string]Refusal{}
	for _, c := range all.Conns {
		if c.IssuerKey == "" { // it has a few seconds to say who it is
			continue
		}
		// Not c.AuthorizedUser: that is any text, if the client sends one with its JWT.
		claims, err := jwt.DecodeUserClaims(c.JWT) // NATS has checked who signed it
		if err != nil {
			continue
		}
		key := claims.Subject
		if of[key]++; of[key] > mostOfOne && s.DisconnectClientByID(c.Cid) == nil {
			closed++
			excess[key] = Refusal{Client: claims.Name, From: c.IP, Operation: "connect"}
		}
	}
	for key, r := range excess {
		r.Reason = fmt.Sprintf("it had %d connections, and all others had to share the rest", of[key])
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
