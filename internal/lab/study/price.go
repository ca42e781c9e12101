package study

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Price is the price of one CPU for an hour, in files with its currency ("0.0528 USD");
// the zero value means none.
type Price struct {
	Amount   float64 `json:"amount"`
	Currency string  `json:"currency"`
}

// UnmarshalText reads an amount and a currency.
func (p *Price) UnmarshalText(text []byte) error {
	amount, currency, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	f, err := strconv.ParseFloat(amount, 64)
	if currency = strings.TrimSpace(currency); err != nil || !(f > 0) || math.IsInf(f, 0) || !goodName.MatchString(currency) {
		return fmt.Errorf("%q: want an amount with its currency such as 0.0528 USD", text)
	}
	*p = Price{f, currency}
	return nil
}

// String returns the format that UnmarshalText reads, "" for none.
func (p Price) String() string {
	if p.Amount == 0 {
		return ""
	}
	return strconv.FormatFloat(p.Amount, 'g', -1, 64) + " " + p.Currency
}

// Price is the price of a CPU for an hour where a part runs: its host's price, otherwise
// its environment's; zero if neither has one.
func (s *Study) Price(p *Part) Price {
	if h := s.Hosts[p.Host]; h.Price.Amount > 0 {
		return h.Price
	}
	return s.Environments[p.Environment.Name].Price
}

// prices checks that all prices have the same currency, because they are compared.
func (c *checker) prices() {
	currency := ""
	check := func(key string, p Price) {
		if p.Amount > 0 && currency != "" && p.Currency != currency {
			c.add(key+".price", p, "a price in "+currency+", as the others are")
		}
		if p.Amount > 0 && currency == "" {
			currency = p.Currency
		}
	}
	for _, name := range sorted(c.Hosts) {
		check("hosts."+name, c.Hosts[name].Price)
	}
	for _, name := range sorted(c.Environments) {
		check("environments."+name, c.Environments[name].Price)
	}
}
