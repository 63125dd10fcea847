package e2e

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// Passwords with all the characters at which a parser may cut them. No part of them is
// a word that occurs anywhere else.
const (
	pgSecret    = "Quokka@Marzipan#Zeppelin%Xylophone"
	natsSecret  = "Wombat@Nougat#Airship%Glockenspiel"
	wrongSecret = "Numbat@Praline#Gyroplane%Vibraphone"
)

// expectNoSecret checks that a text holds no part of any password.
func expectNoSecret(tb testing.TB, where, text string) {
	tb.Helper()
	for _, secret := range []string{pgSecret, natsSecret, wrongSecret} {
		for _, part := range strings.FieldsFunc(secret, func(r rune) bool { return strings.ContainsRune("@#%", r) }) {
			if i := strings.Index(strings.ToLower(text), strings.ToLower(part)); i >= 0 {
				tb.Errorf("%s holds %q: ...%s", where, part, text[max(0, i-80):min(len(text), i+80)])
			}
		}
	}
}

// protected is an outbox whose servers both ask the forwarder for a password.
func protected(t *testing.T) *outbox {
	t.Helper()
	cluster := testenv.NewPostgres(t, devstack.PostgresOptions{})
	file := filepath.Join(cluster.DataDir(), "pg_hba.conf")
	rules, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append([]byte("host all fwd all scram-sha-256\n"), rules...), 0o600); err != nil {
		t.Fatal(err)
	}
	server := testenv.NATS(t, natsUsers(fmt.Sprintf("{user: fwd, password: %q}", natsSecret)))
	o := newOutboxOn(t, cluster, testenv.WithUser(t, server.URL(), "admin", "admin"))
	o.exec("CREATE ROLE fwd LOGIN SUPERUSER PASSWORD '"+pgSecret+"'", "SELECT pg_reload_conf()")
	o.forwarderDatabaseURL = testenv.WithUser(t, o.databaseURL, "fwd", pgSecret)
	o.forwarderNATSURL = testenv.WithUser(t, server.URL(), "fwd", natsSecret)
	return o
}

func TestNoPartOfAPasswordIsEverShown(t *testing.T) {
	t.Parallel()
	o := protected(t)
	rightDatabase, rightNATS := o.forwarderDatabaseURL, o.forwarderNATSURL
	raw := func(u string, secret string) string { // the password as it is, not encoded
		before, after, _ := strings.Cut(u, url.UserPassword("fwd", secret).String()+"@")
		return before + "fwd:" + secret + "@" + after
	}
	port := testenv.AddressOf(t, rightDatabase)
	host, number, _ := strings.Cut(port, ":")
	keywords := func(secret, more string) string {
		return fmt.Sprintf("host=%s port=%s user=fwd dbname=%s password='%s' %s", host, number, testenv.DatabaseName(t, rightDatabase), secret, more)
	}
	for _, test := range []struct {
		name, database, nats string
		env                  []string
		code                 int
	}{
		{name: "wrong PostgreSQL password", database: testenv.WithUser(t, rightDatabase, "fwd", wrongSecret), code: 3},
		{name: "wrong PostgreSQL password in keywords", database: keywords(wrongSecret, "sslmode=disable"), code: 3},
		{name: "wrong PostgreSQL password in PGPASSWORD", database: strings.Replace(testenv.WithUser(t, rightDatabase, "fwd", "x"), ":x@", "@", 1), env: []string{"PGPASSWORD=" + wrongSecret}, code: 3},
		{name: "wrong NATS password", nats: testenv.WithUser(t, rightNATS, "fwd", wrongSecret), code: 3},
		{name: "wrong NATS token", nats: strings.Replace(testenv.WithUser(t, rightNATS, wrongSecret, ""), ":@", "@", 1), code: 3},
		{name: "PostgreSQL password not encoded", database: raw(rightDatabase, pgSecret), code: 2},
		{name: "NATS password not encoded", nats: raw(rightNATS, natsSecret), code: 2},
		{name: "bad PostgreSQL port", database: strings.Replace(rightDatabase, ":"+number, ":54x2", 1), code: 2},
		{name: "bad NATS port", nats: strings.Replace(rightNATS, testenv.AddressOf(t, rightNATS), "127.0.0.1:42x2", 1), code: 2},
		{name: "bad sslmode", database: strings.Replace(rightDatabase, "sslmode=disable", "sslmode=perhaps", 1), code: 2},
		{name: "bad sslmode in keywords", database: keywords(pgSecret, "sslmode=perhaps"), code: 2},
		{name: "bad keywords", database: keywords(pgSecret, "connect_timeout='"), code: 2},
		{name: "wrong database", database: strings.Replace(rightDatabase, "/"+testenv.DatabaseName(t, rightDatabase), "/nowhere", 1), code: 3},
	} {
		for _, command := range []string{"start", "status"} {
			t.Run(test.name+", "+command, func(t *testing.T) {
				run := *o
				run.tb, run.env = t, test.env
				run.forwarderDatabaseURL, run.forwarderNATSURL = rightDatabase, rightNATS
				if test.database != "" {
					run.forwarderDatabaseURL = test.database
				}
				if test.nats != "" {
					run.forwarderNATSURL = test.nats
				}
				args := []string{command, "--log-level", "debug"}
				if command == "start" {
					args = append(args, "--http", "off")
				}
				p := run.run(args...)
				code := p.Wait(testenv.Deadline)
				if command == "start" && code != test.code {
					t.Errorf("exit code %d, want %d", code, test.code)
				}
				expectNoSecret(t, "output", p.Stdout()+p.Stderr())
				if code != 0 && !strings.Contains(p.Stderr(), "hint: ") {
					t.Errorf("no hint in %s", p.Stderr())
				}
			})
		}
	}
}

func TestNoPartOfAPasswordIsShownWhileRunningAndFailing(t *testing.T) {
	t.Parallel()
	o := protected(t)
	database := testenv.NewProxy(t, testenv.AddressOf(t, o.databaseURL))
	broker := testenv.NewProxy(t, testenv.AddressOf(t, o.natsURL))
	o.forwarderDatabaseURL = database.URL(o.forwarderDatabaseURL)
	o.forwarderNATSURL = broker.URL(o.forwarderNATSURL)
	p, health := o.startHTTPStreaming("--log-level", "debug", "--takeover-after", "1s")
	look := func(when string) {
		t.Helper()
		for _, path := range []string{"/", "/status", "/metrics", "/livez", "/readyz"} {
			_, body := health.get(path)
			if body == "" {
				t.Errorf("GET %s is empty", path)
			}
			expectNoSecret(t, "GET "+path+" "+when, body)
		}
	}
	o.insert("a", 10)
	o.expectAll()
	look("while streaming")
	database.Cut()
	health.waitRed()
	look("while PostgreSQL is away")
	database.Heal()
	health.waitReady()
	broker.Cut()
	health.waitRed()
	look("while NATS is away")
	broker.Heal()
	health.waitReady()
	o.exec("ALTER ROLE fwd PASSWORD '" + wrongSecret + "'")
	database.Drop()
	health.waitRed()
	look("while PostgreSQL refuses the password")
	p.Signal(syscall.SIGQUIT) // as a panic does, it prints all goroutines
	if code := p.Wait(testenv.Deadline); code != 2 {
		t.Errorf("exit code %d after SIGQUIT", code)
	}
	if !strings.Contains(p.Stderr(), "goroutine ") {
		t.Errorf("no goroutines are printed")
	}
	expectNoSecret(t, "output", p.Stdout()+p.Stderr())
}
