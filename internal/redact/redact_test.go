package redact_test

import (
	"bytes"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/redact"
)

func TestNoPieceOfAPasswordGetsThroughWhateverTheConnectionStringLooksLike(t *testing.T) {
	passwords := []string{"hunter2secret", "top@drawer", "half#full!", "cent%perc", "path/finder", "what?when", "colo:ured", "both@sides#mixed%up", "with space inside", `quo'ted"back\slash`}
	for _, password := range passwords {
		for name, text := range map[string]string{
			"url raw":             "postgres://bob:" + password + "@db.example:5432/shop",
			"url encoded":         "postgres://bob:" + url.QueryEscape(password) + "@db.example:5432/shop",
			"url with bad port":   "postgres://bob:" + password + "@db.example:port/shop",
			"url with query":      "postgres://db.example/shop?user=bob&password=" + url.QueryEscape(password) + "&sslmode=bogus",
			"keywords quoted":     "host=db.example user=bob password='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(password) + "' dbname=shop",
			"keywords bare":       "host=db.example password=" + password + " dbname=shop",
			"keywords never shut": "host=db.example dbname=shop password='" + password,
		} {
			var secrets redact.Secrets
			secrets.AddDatabaseURL(text)
			assertHidden(t, &secrets, name, password)
		}
		for name, text := range map[string]string{
			"nats raw":   "nats://bob:" + password + "@n1.example:4222,nats://n2.example:4222",
			"nats token": "nats://" + url.QueryEscape(password) + "@n1.example:4222",
			"no scheme":  "bob:" + password + "@n1.example",
		} {
			var secrets redact.Secrets
			secrets.AddNATSURL(text)
			assertHidden(t, &secrets, name, password)
		}
	}
}

// assertHidden prints the password in the ways in which libraries do and looks for what is left of it.
func assertHidden(t *testing.T, secrets *redact.Secrets, name, password string) {
	t.Helper()
	words := strings.FieldsFunc(password, func(r rune) bool { return strings.ContainsRune(`@#%/?: '"\`, r) })
	for _, printed := range append([]string{
		password, url.QueryEscape(password), url.PathEscape(password), fmt.Sprintf("%q", password),
	}, words...) {
		var out bytes.Buffer
		if _, err := fmt.Fprintf(secrets.Writer(&out), "dial tcp: lookup %s: no such host\n", printed); err != nil {
			t.Fatal(err)
		}
		for _, word := range words {
			if len(word) >= 4 && strings.Contains(out.String(), word) {
				t.Errorf("%s, password %q: %q shows %q", name, password, out.String(), word)
			}
		}
	}
}

func TestOrdinaryWordsOfAConnectionStringStayReadable(t *testing.T) {
	var secrets redact.Secrets
	secrets.AddDatabaseURL("postgres://app:app@db.example:5432/shop?sslmode=require")
	secrets.AddDatabaseURL("postgres://postgres:postgres@localhost/postgres")
	secrets.AddDatabaseURL("postgres://db.example:5432/shop?options=me@here")
	secrets.AddNATSURL("nats://n1.example:4222,nats://n2.example:4222")
	const line = "connect to db.example:5432/shop as app and postgres, n1.example:4222 require here"
	if got := secrets.String(line); got != line {
		t.Errorf("got %q", got)
	}
}
