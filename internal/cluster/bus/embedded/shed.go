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
	// shedPage is how many connections are looked at together.
	shedPage = 10_000
)

// Shed closes the newest connections of each holder that has too many, while more than half of all
// connections are in use, and returns their number. NATS bounds those of an account, and all agents are in
// one: a single one could hold all.
func (s *Server) Shed() (closed int) {
	if s.NumClients() <= s.most/2 {
		return 0
	}
	of := map[string]int{} // connections, by public key
	excess := map[string]*server.ConnInfo{}
	for n := 0; ; n++ {
		page, err := s.Connz(&server.ConnzOptions{Username: true, Sort: server.ByCid, Offset: n*shedPage - closed, Limit: shedPage}) // the list is shorter by those
		if err != nil || len(page.Conns) == 0 {
			break
		}
		for _, c := range page.Conns {
			if c.AuthorizedUser == "" { // it has a few seconds to say who it is
				continue
			}
			if of[c.AuthorizedUser]++; of[c.AuthorizedUser] > mostOfOne && s.DisconnectClientByID(c.Cid) == nil {
				closed++
				excess[c.AuthorizedUser] = c
			}
		}
		if len(page.Conns) < shedPage {
			break
		}
	}
	for key, c := range excess {
		r := Refusal{From: c.IP, Operation: "connect", Reason: fmt.Sprintf("it had %d connections, and all others had to share the rest", of[key])}
		if claims, err := jwt.DecodeUserClaims(c.JWT); err == nil { // NATS has checked who signed it
			r.Client = claims.Name
		}
		s.refused(r)
	}
	return closed
}

// watchConnections calls Shed until the server is closed.
func (s *Server) watchConnections() {
	tick := time.NewTicker(shedEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.ended:
			return
		case <-tick.C:
			s.Shed()
		}
	}
}
