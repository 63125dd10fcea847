package cli_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/cli"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// result is one run of the command line inside the test process.
type result struct {
	code           int
	stdout, stderr string
}

// env is the environment of one run; nothing of the test's own gets in.
type env map[string]string

func (e env) run(args ...string) result {
	var stdout, stderr bytes.Buffer
	var environ []string
	for name, text := range e {
		environ = append(environ, name+"="+text)
	}
	code := cli.Main(append([]string{"outbox-cdc"}, args...), &stdout, &stderr, environ)
	return result{code: code, stdout: stdout.String(), stderr: stderr.String()}
}

// want checks the exit code and returns the result.
func (r result) want(t *testing.T, code int) result {
	t.Helper()
	if r.code != code {
		t.Fatalf("exit code %d, want %d\nstdout: %s\nstderr: %s", r.code, code, r.stdout, r.stderr)
	}
	return r
}

// says checks that standard error holds the texts.
func (r result) says(t *testing.T, texts ...string) result {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(r.stderr, text) {
			t.Errorf("standard error does not say %q:\n%s", text, r.stderr)
		}
	}
	return r
}

func (r result) document(t *testing.T) map[string]any {
	t.Helper()
	var document map[string]any
	if err := json.Unmarshal([]byte(r.stdout), &document); err != nil {
		t.Fatalf("%v in %q", err, r.stdout)
	}
	return document
}

// at follows keys into a document.
func at(t *testing.T, document map[string]any, keys ...string) any {
	t.Helper()
	var value any = document
	for _, key := range keys {
		object, ok := value.(map[string]any)
		if !ok {
			t.Fatalf("no object around %q in %v", key, document)
		}
		if value, ok = object[key]; !ok {
			t.Fatalf("no key %q in %v", key, object)
		}
	}
	return value
}

func writeFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "outbox.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestEachWrongFlagKeyOrValueIsNamedAndEndsWithCode2BeforeAnyConnection(t *testing.T) {
	file := func(content string) []string { return []string{"status", "--config", writeFile(t, content)} }
	for _, tc := range []struct {
		args []string
		env  env
		says string
	}{
		{args: nil, says: "no command given"},
		{args: []string{"statsu"}, says: "unknown command \"statsu\"\nhint: did you mean outbox-cdc status?"},
		{args: []string{"slot"}, says: "slot: no command given"},
		{args: []string{"slot", "dorp"}, says: `unknown command "slot dorp"` + "\nhint: did you mean outbox-cdc slot drop?"},
		{args: []string{"status", "now"}, says: `unexpected argument "now"`},
		{args: []string{"status", "--slto", "x"}, says: "unknown flag --slto\nhint: did you mean --slot?"},
		{args: []string{"--slto", "x", "status"}, says: "unknown flag --slto\nhint: did you mean --slot?"},
		{args: []string{"status", "--dry-run"}, says: "--dry-run belongs to outbox-cdc setup, replay, migrate up"},
		{args: []string{"status", "--slot"}, says: "--slot needs a value"},
		{args: []string{"status", "--json=maybe"}, says: `--json "maybe" is not true or false`},
		{args: []string{"status", "--slot", "Billing-EU"}, says: `--slot "Billing-EU" is not a slot name`},
		{args: []string{"--slot", "Billing-EU", "status"}, says: `--slot "Billing-EU" is not a slot name`},
		{args: []string{"status"}, env: env{"OUTBOX_CDC_SLOT": "a-b"}, says: `OUTBOX_CDC_SLOT "a-b"`},
		{args: file("table: public.outbox\nslot: a-b\n"), says: `outbox.yaml:2: slot "a-b"`},
		{args: file("slto: x\n"), says: "outbox.yaml:1: unknown key \"slto\"\nhint: did you mean slot?"},
		{args: file("slot: a\nslot: b\n"), says: "outbox.yaml:2: slot is given twice"},
		{args: file("slot:\n  deep: x\n"), says: "outbox.yaml:1: slot has no value"},
		{args: file("slot: [a\n"), says: "outbox.yaml:1: not valid YAML"},
		{args: file("max-in-flight: many\n"), says: `outbox.yaml:1: max-in-flight "many" must be a whole number`},
		{args: []string{"status", "--config", "/no/such/file"}, says: "/no/such/file"},
		{args: []string{"status", "--publication", `"Billing`}, says: "double quotes do not match"},
		{args: []string{"status", "--table", "a.b.c"}, says: "more than two parts"},
		{args: []string{"status", "--stream", "a.b"}, says: `--stream "a.b" is not a stream name`},
		{args: []string{"status", "--subject", "outbox.{nope}"}, says: "{nope} is not a mapped column"},
		{args: []string{"status", "--subject", "$JS.API.{event_type}"}, says: "belong to NATS"},
		{args: []string{"status", "--columns", "event_ids=id"}, says: "the nearest is event_id"},
		{args: []string{"status", "--source", "a/b"}, says: `--source "a/b" is not a source name`},
		{args: []string{"status", "--nats-creds", "/no/such"}, says: `--nats-creds "/no/such" cannot be read`},
		{args: []string{"status", "--nats-url", "http://127.0.0.1"}, says: "--nats-url is not a NATS URL"},
		{args: []string{"status", "--nats-url", "nats://127.0.0.1:port"}, says: "--nats-url has a wrong port"},
		{args: []string{"status", "--database-url", "mysql://x"}, says: "--database-url is not a PostgreSQL URL"},
		{args: []string{"status", "--database-url", "postgres://h:0/d"}, says: "wrong port"},
		{args: []string{"status", "--database-url", "postgres://h/d?sslmode=on"}, says: "wrong sslmode"},
		{args: []string{"status", "--database-url", "host=h connect_timeout=soon"}, says: "wrong value for connect_timeout"},
		{args: []string{"status", "--log-level", "loud"}, says: `--log-level "loud" must be one of debug, info, warn, error`},
		{args: []string{"status", "--interval", "5"}, says: `--interval "5" must be a duration`},
		{args: []string{"setup", "--timeout", "-1s"}, says: `--timeout "-1s" must be 1ms to 24h`},
		{args: []string{"setup", "--max-bytes", "10 apples"}, says: `--max-bytes "10 apples" must be a size such as 65536, 512KiB, 32MiB or 1GiB, or none`},
		{args: []string{"setup", "--max-bytes", "1B"}, says: `--max-bytes "1B" must be 1KiB to 1048576TiB, or none`},
		{args: []string{"setup", "--max-age", "1ms"}, says: `--max-age "1ms" must be 100ms to 876000h, or none`},
		{args: []string{"start", "--http", "here"}, says: `--http "here" must be an address such as 127.0.0.1:9477 or :9477, or off`},
		{args: []string{"start", "--http", "127.0.0.1:65536"}, says: `must be an address whose port is a number up to 65535, not "65536", or off`},
		{args: []string{"start", "--http", "a b:1"}, says: `must be an address of a host, not of "a b", or off`},
		{args: []string{"setup", "--replicas", "2"}, says: `--replicas "2" must be one of 1, 3, 5`},
		{args: []string{"slot", "drop"}, says: "slot drop needs --yes"},
		{args: []string{"slot", "advance"}, says: "slot advance needs --to"},
		{args: []string{"slot", "advance", "--to", "1234"}, says: `--to "1234" is not a position`},
		{args: []string{"publication", "drop"}, says: "publication drop needs --yes"},
		{args: []string{"migrate", "down", "--to", "0"}, says: "migrate down needs --yes"},
	} {
		r := tc.env.run(tc.args...).want(t, 2).says(t, tc.says, "\nhint: ")
		if r.stdout != "" {
			t.Errorf("%v wrote %q to standard output", tc.args, r.stdout)
		}
		if lines := strings.Count(r.stderr, "\n"); lines != 2 {
			t.Errorf("%v wrote %d lines, want an error and a hint:\n%s", tc.args, lines, r.stderr)
		}
	}
}

func TestAFlagBeatsTheEnvironmentWhichBeatsTheFile(t *testing.T) {
	database := testenv.Postgres(t).NewDatabase(t)
	file := writeFile(t, "slot: from_file\nstream: FROM_FILE\ntable: public.from_file\nnats-url:\n  - nats://127.0.0.1:1\n")
	e := env{"OUTBOX_CDC_SLOT": "from_env", "OUTBOX_CDC_STREAM": "FROM_ENV", "OUTBOX_CDC_CONFIG": file, "DATABASE_URL": database}
	missing := func(args ...string) string {
		return e.run(append([]string{"slot", "show"}, args...)...).want(t, 3).stderr
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{nil, "slot from_env"},
		{[]string{"--slot", "from_flag"}, "slot from_flag"},
	} {
		if got := missing(tc.args...); !strings.Contains(got, tc.want) {
			t.Errorf("%v: got %q, want %q", tc.args, got, tc.want)
		}
	}
	e["OUTBOX_CDC_SLOT"] = "" // empty is not set
	if got := missing(); !strings.Contains(got, "slot from_file") {
		t.Errorf("got %q", got)
	}
	before := e.run("--slot", "before", "slot", "show").want(t, 3).stderr
	between := e.run("slot", "--slot", "between", "show").want(t, 3).stderr
	if !strings.Contains(before, "slot before") || !strings.Contains(between, "slot between") {
		t.Errorf("a flag before the command is lost: %q, %q", before, between)
	}
	if got := e.run("migrate", "sql").want(t, 0).stdout; !strings.Contains(got, `"public"."from_file"`) {
		t.Errorf("the file is not read: %s", got)
	}
}

func TestHelpGoesToStandardOutputAndHasAnExampleForEachCommand(t *testing.T) {
	for _, path := range []string{
		"setup", "status", "migrate", "migrate up", "migrate down", "migrate status", "migrate sql", "slot", "slot create", "slot drop", "slot show",
		"slot advance", "publication", "publication create", "publication drop", "publication show", "stream", "stream create", "stream show", "completion bash", "version",
	} {
		r := env{}.run(append(strings.Fields(path), "--help")...).want(t, 0)
		if !strings.Contains(r.stdout, "Example:\n  ") || !strings.Contains(r.stdout, "outbox-cdc "+path) || r.stderr != "" {
			t.Errorf("%s --help: %q, %q", path, r.stdout, r.stderr)
		}
	}
	if r := (env{}).run("--help").want(t, 0); !strings.Contains(r.stdout, "Exit codes:") {
		t.Errorf("got %q", r.stdout)
	}
}

func TestAVariableThatIsNoFlagIsWarnedOfWithTheNearestOne(t *testing.T) {
	e := env{
		"OUTBOX_CDC_MAX_IN_FLIGT": "3", "OUTBOX_CDC_ZZZZZZ": "Secr3t", "OUTBOX_CDC_TABLE": "public.orders", "OUTBOX_CDC_HTTP": "off",
		"OUTBOX_CDC_SERVICE_HOST": "10.0.0.1", "OUTBOX_CDC_PORT": "tcp://10.0.0.1:9477", "OUTBOX_CDC_PORT_9477_TCP_ADDR": "10.0.0.1",
	}
	r := e.run("migrate", "sql").want(t, 0).says(t, "OUTBOX_CDC_MAX_IN_FLIGT", "did you mean OUTBOX_CDC_MAX_IN_FLIGHT?", "OUTBOX_CDC_ZZZZZZ")
	if lines := strings.Count(r.stderr, "\n"); lines != 2 || strings.Contains(r.stderr, "Secr3t") {
		t.Errorf("want two warnings without values:\n%s", r.stderr)
	}
	if !strings.Contains(r.stdout, `"public"."orders"`) {
		t.Errorf("the other variables are not read: %s", r.stdout)
	}
}

func TestHelpOffersNoFlagThatTheCommandRefusesOrHasNoUseFor(t *testing.T) {
	for command, flags := range map[string][]string{
		"dev": {"--database-url", "--nats-url", "--nats-creds", "--columns"}, "version": {"--slot", "--nats-url", "--log-level"}, "completion bash": {"--slot", "--table"},
	} {
		help := env{}.run(append(strings.Fields(command), "--help")...).want(t, 0).stdout
		for _, flag := range flags {
			if strings.Contains(help, flag+" ") {
				t.Errorf("%s --help offers %s", command, flag)
			}
		}
	}
	if help := (env{}).run("dev", "--help").want(t, 0).stdout; !strings.Contains(help, "--stream ") || !strings.Contains(help, "--log-level ") {
		t.Errorf("dev --help lacks flags that it takes:\n%s", help)
	}
	env{}.run("dev", "--nats-url", "nats://127.0.0.1:4222").want(t, 2).says(t, "dev starts its own servers")
}

func TestVersionIsOneDocument(t *testing.T) {
	document := env{}.run("version", "--json").want(t, 0).document(t)
	if version, _ := at(t, document, "version").(string); version == "" {
		t.Errorf("got %v", document)
	}
}
