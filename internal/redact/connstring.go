package redact

import (
	"net/url"
	"strings"
)

// AddDatabaseURL learns the passwords of a PostgreSQL connection string, in URL or
// keyword form. It also takes strings that do not parse: what it cannot make out it
// takes for a secret.
func (s *Secrets) AddDatabaseURL(text string) {
	if strings.Contains(text, "://") {
		s.addURL(text, false)
		return
	}
	s.addKeywords(text)
}

// AddNATSURL learns passwords and tokens of one or more NATS URLs, comma separated.
func (s *Secrets) AddNATSURL(text string) {
	for part := range strings.SplitSeq(text, ",") {
		s.addURL(part, true)
	}
	if strings.Count(text, ",") > 0 && strings.Count(text, "@") > 0 {
		// A comma inside a password splits it: also look at the whole.
		if first, _, _ := strings.Cut(text, "@"); strings.Contains(first, ",") {
			s.addURL(text, true)
		}
	}
}

// addURL takes the user information of one URL. With userIsToken a user without a
// password is a token.
func (s *Secrets) addURL(text string, userIsToken bool) {
	_, rest, found := strings.Cut(text, "://")
	if !found {
		rest = text
	}
	if _, query, ok := strings.Cut(rest, "?"); ok {
		s.addQuery(query)
	}
	end := userInfoEnd(rest)
	if end < 0 {
		return
	}
	user, password, hasPassword := strings.Cut(rest[:end], ":")
	public := append(hostWords(rest[end+1:]), user)
	switch {
	case hasPassword:
		s.Add(password, public...)
	case userIsToken:
		s.Add(user, hostWords(rest[end+1:])...)
	case strings.Contains(user, "@"):
		s.Add(user, hostWords(rest[end+1:])...)
	}
}

// userInfoEnd returns the index of the @ that ends the user information, or -1. The
// last @ before the query counts: passwords with a bare @ do occur.
func userInfoEnd(rest string) int {
	beforeQuery, _, _ := strings.Cut(rest, "?")
	if i := strings.LastIndexByte(beforeQuery, '@'); i >= 0 {
		return i
	}
	// No @ before the first question mark: either there is no user information, or the
	// password holds a bare question mark.
	end := strings.LastIndexByte(rest, '@')
	if end >= 0 && strings.Contains(beforeQuery, ":") && !strings.Contains(beforeQuery, "/") {
		return end
	}
	return -1
}

func (s *Secrets) addQuery(query string) {
	for param := range strings.SplitSeq(query, "&") {
		key, value, _ := strings.Cut(param, "=")
		if decoded, err := url.QueryUnescape(key); err == nil {
			key = decoded
		}
		if isSecretKey(key) {
			s.Add(value)
		}
	}
}

func isSecretKey(key string) bool {
	return strings.EqualFold(key, "password") || strings.EqualFold(key, "sslpassword")
}

// hostWords are the words of host, port, path and query: on show anyway.
func hostWords(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(cuts, r) })
}

// addKeywords reads libpq's keyword form: key = value, where the value may stand in
// single quotes, with backslash escapes.
func (s *Secrets) addKeywords(text string) {
	rest := text
	for rest != "" {
		key, after, found := strings.Cut(rest, "=")
		if !found {
			return
		}
		fields := strings.Fields(key)
		value, raw, remains, closed := keywordValue(strings.TrimLeft(after, " \t\r\n"))
		if len(fields) > 0 && isSecretKey(fields[len(fields)-1]) {
			s.Add(value)
			s.Add(raw)
			if !closed {
				s.Add(after) // broken quoting: all that follows may be the password
			}
			// A password with a bare space goes on in the next words.
			if word, _, ok := strings.Cut(remains, "="); ok && len(strings.Fields(word)) > 1 {
				words := strings.Fields(word)
				s.Add(strings.Join(words[:len(words)-1], " "))
			} else if !ok {
				s.Add(strings.TrimSpace(remains))
			}
		}
		rest = remains
	}
}

// keywordValue reads one value and returns it with and without its escapes.
func keywordValue(text string) (value, raw, remains string, closed bool) {
	quoted := strings.HasPrefix(text, "'")
	var b strings.Builder
	start := 0
	if quoted {
		start = 1
	}
	for i := start; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text):
			i++
			b.WriteByte(text[i])
		case quoted && c == '\'':
			return b.String(), text[start:i], text[i+1:], true
		case !quoted && strings.IndexByte(" \t\r\n", c) >= 0:
			return b.String(), text[start:i], text[i:], true
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), text[start:], "", !quoted
}
