package redact

import (
	"cmp"
	"encoding/json"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Mask stands where a secret was.
const Mask = "***"

const (
	secretMin = 4  // bytes; shorter ones cannot be told from ordinary text
	piecesMax = 16 // of one secret, against a quadratic blow-up
)

// cuts are the characters at which a parser may split a connection string, so that
// it takes a piece of the password for a host, a port, a path or a fragment.
const cuts = "@#%/?:&=,; '\"\\[]"

// Secrets is a growing set of texts that must not be shown. Its methods may be
// called from several goroutines. The zero value is empty and ready.
type Secrets struct {
	mu       sync.RWMutex
	forms    map[string]struct{}
	replacer *strings.Replacer // nil while there is nothing to hide
}

// Add makes secret unsayable, in its raw, percent-decoded, percent-encoded and quoted
// forms. public names what stands in clear next to it, such as the user: a secret
// that equals one of those hides nothing and would only blot out ordinary text.
func (s *Secrets) Add(secret string, public ...string) {
	forms := map[string]struct{}{}
	for _, spelled := range spellings(secret) {
		for _, piece := range pieces(spelled) {
			if len(piece) >= secretMin && !isPublic(piece, public) {
				forms[piece] = struct{}{}
			}
		}
	}
	if len(forms) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forms == nil {
		s.forms = map[string]struct{}{}
	}
	for form := range forms {
		s.forms[form] = struct{}{}
	}
	longestFirst := make([]string, 0, len(s.forms))
	for form := range s.forms {
		longestFirst = append(longestFirst, form)
	}
	slices.SortFunc(longestFirst, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), strings.Compare(a, b))
	})
	pairs := make([]string, 0, 2*len(longestFirst))
	for _, form := range longestFirst {
		pairs = append(pairs, form, Mask)
	}
	s.replacer = strings.NewReplacer(pairs...)
}

// String returns text with every known secret masked.
func (s *Secrets) String(text string) string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.replacer == nil {
		return text
	}
	return s.replacer.Replace(text)
}

// Writer masks what is written to w. One call of Write must hold whole lines, as the
// handlers of log/slog and fmt.Fprintf do: a secret cut in two by two calls is not found.
func (s *Secrets) Writer(w io.Writer) io.Writer {
	return &writer{secrets: s, out: w}
}

type writer struct {
	secrets *Secrets
	out     io.Writer
}

func (w *writer) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.out, w.secrets.String(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// spellings returns the ways in which a secret may come back in some library's text.
func spellings(secret string) []string {
	all := []string{secret}
	plain := []string{secret}
	for _, decode := range []func(string) (string, error){url.PathUnescape, url.QueryUnescape} {
		if decoded, err := decode(secret); err == nil && decoded != secret {
			plain = append(plain, decoded)
		}
	}
	for _, p := range plain {
		all = append(all, p, url.QueryEscape(p), url.PathEscape(p))
		if userinfo := url.UserPassword("", p).String(); len(userinfo) > 1 {
			all = append(all, userinfo[1:])
		}
		all = append(all, inner(strconv.Quote(p)))
		if asJSON, err := json.Marshal(p); err == nil {
			all = append(all, inner(string(asJSON)))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func inner(quoted string) string { return quoted[1 : len(quoted)-1] }

// pieces returns secret and every run of it between two cuts.
func pieces(secret string) []string {
	starts, ends := []int{0}, []int{}
	for i := range len(secret) {
		if strings.IndexByte(cuts, secret[i]) >= 0 && len(starts) < piecesMax {
			ends = append(ends, i)
			starts = append(starts, i+1)
		}
	}
	ends = append(ends, len(secret))
	var all []string
	for _, from := range starts {
		for _, to := range ends {
			if to > from {
				all = append(all, secret[from:to])
			}
		}
	}
	return all
}

// isPublic reports whether text says nothing that is not on show anyway.
func isPublic(text string, public []string) bool {
	for _, p := range public {
		if strings.EqualFold(text, p) {
			return true
		}
	}
	switch strings.ToLower(text) {
	case "postgres", "nats", "outbox":
		return true
	}
	return false
}
