package metrics

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const deployDir = "../../deploy"

func TestEachMetricAndLabelValueNamedInDeployExists(t *testing.T) {
	known := map[string]bool{}
	for name := range contractNames {
		known[name] = true
		if strings.HasSuffix(name, "_seconds") && name != "outbox_cdc_oldest_unacked_seconds" { // a histogram
			known[name+"_bucket"] = true
		}
	}
	values := map[string][]string{
		"state":  States(),
		"side":   {SidePostgres.String(), SideNATS.String()},
		"reason": append(DeadLetterReasons(), otherReason, SkippedAlreadyStored.String(), SkippedDuplicate.String()),
	}
	used := map[string]bool{}
	for path, text := range deployFiles(t) {
		for _, name := range regexp.MustCompile(`\boutbox_cdc_[a-z_]+`).FindAllString(text, -1) {
			used[strings.TrimSuffix(name, "_bucket")] = true
			if !known[name] {
				t.Errorf("%s names %s, which is not exported", path, name)
			}
		}
		for _, m := range regexp.MustCompile(`(state|side|reason)=~?\\?"([^"\\]*)`).FindAllStringSubmatch(text, -1) {
			if !slices.Contains(values[m[1]], m[2]) {
				t.Errorf("%s names %s=%q, which never occurs", path, m[1], m[2])
			}
		}
	}
	for name := range contractNames {
		if !used[name] {
			t.Errorf("nothing in deploy shows %s", name)
		}
	}
}

func TestTheAlertRulesCoverWhatEndsInLossOrDelay(t *testing.T) {
	var doc struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal([]byte(deployFiles(t)["prometheus/outbox-cdc.rules.yml"]), &doc); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, r := range doc.Groups[0].Rules {
		if r.Annotations["summary"] == "" {
			t.Errorf("%s has no summary", r.Alert)
		}
		all.WriteString(r.Expr + "\n")
	}
	for _, want := range []string{
		`outbox_cdc_state{state="streaming"}`, "outbox_cdc_oldest_unacked_seconds", "outbox_cdc_slot_retained_bytes",
		"outbox_cdc_slot_safe_bytes", "outbox_cdc_dead_letters)", "outbox_cdc_order_violations_total", "absent(",
	} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("no rule looks at %s", want)
		}
	}
}

func TestTheDashboardIsValidAndItsPanelsDoNotOverlap(t *testing.T) {
	var doc struct {
		Title  string
		Panels []struct {
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(deployFiles(t)["grafana/outbox-cdc.json"]), &doc); err != nil {
		t.Fatal(err)
	}
	for i, p := range doc.Panels {
		if len(p.Targets) == 0 {
			t.Errorf("panel %q shows nothing", p.Title)
		}
		for _, q := range doc.Panels[:i] {
			a, b := p.GridPos, q.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("panels %q and %q overlap", p.Title, q.Title)
			}
		}
	}
}

// A supervisor restarts what may heal and nothing else, and waits until a forwarder
// has drained.
func TestSupervisorsFollowTheExitCodes(t *testing.T) {
	unit := deployFiles(t)["systemd/outbox-cdc.service"]
	for _, line := range []string{"Restart=on-failure", "RestartPreventExitStatus=2 3", "TimeoutStopSec=20"} {
		if !strings.Contains(unit, "\n"+line+"\n") {
			t.Errorf("the unit lacks %s", line)
		}
	}
	var pod struct {
		Spec struct {
			Template struct {
				Spec struct {
					TerminationGracePeriodSeconds int `yaml:"terminationGracePeriodSeconds"`
					Containers                    []struct {
						LivenessProbe  probe `yaml:"livenessProbe"`
						ReadinessProbe probe `yaml:"readinessProbe"`
					}
				}
			}
		}
	}
	if err := yaml.Unmarshal([]byte(deployFiles(t)["kubernetes/outbox-cdc.yaml"]), &pod); err != nil {
		t.Fatal(err)
	}
	spec := pod.Spec.Template.Spec
	if spec.TerminationGracePeriodSeconds <= 10 {
		t.Errorf("the pod is given %d s to drain", spec.TerminationGracePeriodSeconds)
	}
	if p := spec.Containers[0]; p.LivenessProbe.HTTPGet.Path != "/livez" || p.ReadinessProbe.HTTPGet.Path != "/readyz" {
		t.Errorf("probes are %+v and %+v", p.LivenessProbe, p.ReadinessProbe)
	}
}

func TestComposeStartsEachPartWhenWhatItNeedsIsReady(t *testing.T) {
	raw, err := os.ReadFile("../../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Services map[string]struct {
			Command     []string
			Healthcheck struct{ Test []string }
			DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
		}
	}
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"postgres", "nats"} {
		if len(doc.Services[name].Healthcheck.Test) == 0 {
			t.Errorf("%s has no health check", name)
		}
		for _, after := range []string{"setup", "forwarder"} {
			if c := doc.Services[after].DependsOn[name].Condition; c != "service_healthy" {
				t.Errorf("%s waits for %s by %q", after, name, c)
			}
		}
	}
	if c := doc.Services["forwarder"].DependsOn["setup"].Condition; c != "service_completed_successfully" {
		t.Errorf("the forwarder waits for setup by %q", c)
	}
	if !slices.Contains(doc.Services["postgres"].Command, "wal_level=logical") {
		t.Errorf("postgres runs %v", doc.Services["postgres"].Command)
	}
}

type probe struct {
	HTTPGet struct{ Path string } `yaml:"httpGet"`
}

// deployFiles returns the text of each file by its path below deploy.
func deployFiles(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(deployDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(deployDir, path)
		files[filepath.ToSlash(rel)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("deploy is empty")
	}
	return files
}
