package web

import (
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"testing"
)

func TestThePageEscapesEverything(t *testing.T) {
	const evil = `</td><script>alert(1)</script>"'<img src=x onerror=y>`
	src := &fakeSource{
		reason: evil,
		status: map[string]any{"state": evil, evil: evil, "slot": map[string]any{evil: evil, "n": []string{evil}}},
	}
	failing := &fakeSource{reason: evil, err: errors.New(evil)}
	for _, s := range []*fakeSource{src, failing} {
		code, body, _ := get(t, serve(t, Config{Source: s, Version: evil})+"/")
		if code != 200 {
			t.Fatalf("status is %d", code)
		}
		if strings.Contains(body, "<script>alert") || strings.Contains(body, "<img") || strings.Contains(body, `"'<`) {
			t.Errorf("something came through as it was:\n%s", body)
		}
		if !strings.Contains(body, "&lt;script&gt;alert(1)") {
			t.Errorf("the text is not shown at all:\n%s", body)
		}
	}
}

func TestThePageLoadsNothingFromElsewhereAndItsPolicyAllowsWhatItHas(t *testing.T) {
	_, body, head := get(t, serve(t, Config{Source: &fakeSource{status: struct{}{}}})+"/")
	if found := regexp.MustCompile(`(?i)(https?:)?//[a-z0-9]|@import|url\(`).FindString(body); found != "" {
		t.Errorf("the page names something outside: %q", found)
	}
	policy := head.Get("Content-Security-Policy")
	for _, tag := range []string{"script", "style"} {
		text := regexp.MustCompile(`(?s)<` + tag + `>(.*?)</` + tag + `>`).FindStringSubmatch(body)
		if text == nil {
			t.Errorf("the page has no %s", tag)
			continue
		}
		if want := tag + "-src " + hashSource(text[1]); !strings.Contains(policy, want) {
			t.Errorf("the policy %q does not allow the page's own %s (%s)", policy, tag, want)
		}
	}
	if !strings.Contains(policy, "default-src 'none'") {
		t.Errorf("the policy is %q", policy)
	}
}

func TestThePageShowsStateReasonAndFiguresForAPerson(t *testing.T) {
	src := &fakeSource{live: true, ready: false, reason: "backing off: NATS is away", status: json.RawMessage(
		`{"slot":{"name":"outbox","active":true,"active_pid":41234,"retained_bytes":1610612736,"safe_wal_size":null},
		  "last_event":{"position":"1:0/16B3748:0","nested":{"deep":1}},"oldest_undelivered_seconds":75.5,"published":1234567,"state":"backing off"}`)}
	_, body, _ := get(t, serve(t, Config{Source: src, Version: "v1.2.3"})+"/")
	for _, want := range []string{
		"<title>backing off - outbox-cdc</title>", "v1.2.3", `class="state bad">backing off`, "not ready: backing off: NATS is away",
		"<h2>last event</h2>", "1:0/16B3748:0", `title="1610612736">1.5 GiB`, `title="75.5">1m15.5s`, `title="1234567">1,234,567`,
		">41234<", ">yes<", "nested deep", `<th scope="row">safe wal size</th><td><span class="dim">-</span>`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if t.Failed() {
		t.Log(body)
	}
}

func TestALoopThatStandsStillIsShownEvenIfReady(t *testing.T) {
	src := &fakeSource{live: false, ready: true, reason: "no turn for 31s", status: map[string]string{"state": "streaming"}}
	_, body, _ := get(t, serve(t, Config{Source: src})+"/")
	if !strings.Contains(body, `class="state bad"`) || !strings.Contains(body, "the loop stands still: no turn for 31s") {
		t.Error(body)
	}
}

func TestAbsurdNumbersAreShownAsTheyAre(t *testing.T) {
	for _, c := range []struct{ key, number, want string }{
		{"lag_bytes", "-5", "-5"},
		{"lag_bytes", "1e400", "1e400"},
		{"x_seconds", "1e300", "1e300"},
		{"x_seconds", "-1e300", "-1e300"},
		{"x_seconds", "9223372037", "9223372037"},
		{"n", "123456789012345678901234567890", "123456789012345678901234567890"},
		{"n", "1.5", "1.5"},
		{"active_pid", "41234", "41234"},
	} {
		if got := readable(c.key, c.number); got != c.want {
			t.Errorf("%s = %s is shown as %q, want %q", c.key, c.number, got, c.want)
		}
	}
}
