package cli_test

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// commandPaths returns the paths of all commands without commands of their own, as the
// help lists them.
func commandPaths(t *testing.T, group ...string) []string {
	t.Helper()
	help := env{}.run(append(append([]string{}, group...), "--help")...).want(t, 0).stdout
	_, list, isGroup := strings.Cut(help, "\nCommands:\n")
	if !isGroup {
		return []string{strings.Join(group, " ")}
	}
	list, _, _ = strings.Cut(list, "\n\n")
	var paths []string
	for line := range strings.SplitSeq(list, "\n") {
		paths = append(paths, commandPaths(t, append(append([]string{}, group...), strings.Fields(line)[0])...)...)
	}
	return paths
}

var helpExample = regexp.MustCompile(`\nExample:\n((?:  .*\n)+)`)

// Each example runs as it is written once the names of the README are set up.
func TestTheExampleOfEachCommandRuns(t *testing.T) {
	s := newStand(t)
	setup := env{"DATABASE_URL": s.database, "NATS_URL": s.nats}
	setup.run("setup").want(t, 0)
	path := filepath.Dir(testenv.Binary(t)) + ":/usr/bin:/bin"
	examples := 0
	for _, command := range commandPaths(t) {
		help := env{}.run(append(strings.Fields(command), "--help")...).want(t, 0).stdout
		found := helpExample.FindStringSubmatch(help)
		if found == nil {
			t.Errorf("%s has no example", command)
			continue
		}
		for line := range strings.SplitSeq(strings.TrimSuffix(found[1], "\n"), "\n") {
			examples++
			switch command {
			case "start", "dev":
				line = strings.TrimSpace(line) + " --help" // they would go on; at least all their flags exist
			case "status":
				line = "timeout 1 " + strings.TrimSpace(line) // a signal ends it in good order
			case "dead-letter discard": // what is named has to be there
				testenv.Exec(t, s.database, `insert into outbox_dead_letter (source, position, event_id, payload, reason_code, reason, attempts, first_failed_at, dead_at)
					values ('7/outbox', '1:0/1:0', 'huge', '', 'message-too-large', 'too large', 1, now(), now())`)
			case "completion bash", "completion zsh":
				line, _, _ = strings.Cut(line, ">")
			}
			cmd := exec.CommandContext(testenv.Context(t, testenv.Deadline), "bash", "-euc", line)
			cmd.Env = []string{"PATH=" + path, "DATABASE_URL=" + s.database, "NATS_URL=" + s.nats}
			out, err := cmd.CombinedOutput()
			if timedOut := command == "status" && cmd.ProcessState.ExitCode() == 124; err != nil && !timedOut {
				t.Errorf("%s: %v\n%s", strings.TrimSpace(line), err, out)
			}
		}
	}
	if examples < 15 {
		t.Errorf("only %d examples found", examples)
	}
}
