package web

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

//go:embed live.html
var liveHTML string

//go:embed live.css
var liveCSS string

//go:embed live.js
var liveJS string

// page is the template of the live page and the policy that allows its own style and
// script, named by their hashes, and nothing else.
type page struct {
	template *template.Template
	policy   string
}

// pageView is what the template sees.
type pageView struct {
	CSS      template.CSS
	JS       template.JS
	Version  string
	Now      string
	State    string
	Ready    bool
	Live     bool
	Reason   string
	Error    string
	Sections []section
}

type section struct {
	Title string
	Rows  []row
}

type row struct {
	Name  string
	Value string
	// Exact is the value as it stands in /status, where Value is a rounded form of it.
	Exact string
}

func newPage() *page {
	return &page{
		template: template.Must(template.New("live").Parse(liveHTML)),
		policy: "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'" +
			"; style-src " + hashSource(liveCSS) + "; script-src " + hashSource(liveJS),
	}
}

func hashSource(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

func (p *page) write(w http.ResponseWriter, view pageView) {
	view.CSS, view.JS = template.CSS(liveCSS), template.JS(liveJS) //nolint:gosec // both are files of this package
	var out bytes.Buffer
	if err := p.template.Execute(&out, view); err != nil {
		http.Error(w, "the page could not be made: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(out.Bytes()) // the client may have gone
}

// sections turns the document into what the page shows: the plain values first, then
// one section for each object. It also returns the state, which heads the page.
func sections(doc node) (state string, out []section) {
	top := section{Title: "forwarder"}
	for _, f := range doc.fields {
		switch {
		case f.name == "state":
			state = f.value.text
		case f.value.kind == kindObject:
			s := section{Title: words(f.name)}
			s.Rows = appendRows(s.Rows, "", f.value)
			out = append(out, s)
		default:
			top.Rows = append(top.Rows, newRow(f.name, f.name, f.value))
		}
	}
	if len(top.Rows) > 0 {
		out = append([]section{top}, out...)
	}
	return state, out
}

func appendRows(rows []row, prefix string, object node) []row {
	for _, f := range object.fields {
		if f.value.kind == kindObject {
			rows = appendRows(rows, prefix+f.name+" ", f.value)
			continue
		}
		rows = append(rows, newRow(prefix+f.name, f.name, f.value))
	}
	return rows
}

func newRow(label, key string, value node) row {
	exact := plain(value)
	r := row{Name: words(label), Value: exact}
	if value.kind != kindNumber {
		return r
	}
	if short := readable(key, value.text); short != exact {
		r.Value, r.Exact = short, exact
	}
	return r
}

// secondsMax is the longest time that a time.Duration can hold.
const secondsMax = math.MaxInt64 / 1e9

// readable rounds a number for a person, by the unit at the end of its key.
func readable(key, number string) string {
	switch {
	case strings.HasSuffix(key, "bytes"), strings.HasSuffix(key, "wal_size"):
		if n, err := strconv.ParseUint(number, 10, 64); err == nil {
			return humanize.IBytes(n)
		}
	case strings.HasSuffix(key, "seconds"):
		if f, err := strconv.ParseFloat(number, 64); err == nil && math.Abs(f) < secondsMax {
			return time.Duration(f * float64(time.Second)).Round(time.Millisecond).String()
		}
	case strings.HasSuffix(key, "pid"), strings.HasSuffix(key, "port"):
		return number // a name, not an amount
	default:
		if n, err := strconv.ParseInt(number, 10, 64); err == nil {
			return humanize.Comma(n)
		}
	}
	return number
}

func plain(n node) string {
	switch n.kind {
	case kindString, kindNumber:
		return n.text
	case kindBool:
		if n.text == "true" {
			return "yes"
		}
		return "no"
	case kindArray:
		parts := make([]string, len(n.items))
		for i, item := range n.items {
			parts[i] = plain(item)
		}
		return strings.Join(parts, ", ")
	case kindObject:
		return string(n.appendJSON(nil))
	case kindNull:
	}
	return ""
}

func words(name string) string { return strings.ReplaceAll(name, "_", " ") }
