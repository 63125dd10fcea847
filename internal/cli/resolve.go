package cli

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	urfave "github.com/urfave/cli/v2"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/provision"
)

// value is the text of a setting and the place that it came from.
type value struct {
	setting setting
	text    string
	list    []string // of a flag that repeats, when given as one
	origin  string   // "--slot", "OUTBOX_CDC_SLOT", "outbox.yaml:3: slot"; empty for the default
	command string   // to name in a hint
}

// values are the settings of one command, checked. They are read-only.
type values map[string]value

// alsoRead names variables that other programs use too. Our own name for one beats it.
var alsoRead = map[string]string{"database-url": "DATABASE_URL", "nats-url": "NATS_URL"}

// resolve finds each setting's value: flag, then environment, then file, then default.
func (a *app) resolve(c *urfave.Context, settings []setting, command string) (values, error) {
	vals := values{}
	byName := map[string]setting{}
	for _, s := range settings {
		byName[s.name] = s
	}
	config := a.fromFlagOrEnv(c, byName["config"])
	file := map[string]fileValue{}
	if config.text != "" {
		var err error
		if file, err = readConfigFile(config.text, a.known); err != nil {
			return nil, err
		}
	}
	for name, fv := range file {
		s, taken := byName[name]
		if !taken {
			s = a.known[name]
		}
		a.learnSecret(s, fv.text)
		if err := (value{setting: s, text: fv.text, origin: fv.origin, command: command}).check(); err != nil {
			return nil, err
		}
	}
	for _, s := range settings {
		v := a.fromFlagOrEnv(c, s)
		v.command = command
		if fv, ok := file[s.name]; ok && v.origin == "" {
			v.text, v.origin = fv.text, fv.origin
		}
		if v.origin == "" {
			v.text = s.def
		} else {
			a.learnSecret(s, v.text)
			if err := v.check(); err != nil {
				return nil, err
			}
		}
		vals[s.name] = v
	}
	if vals["nats-url"].text == "" {
		vals["nats-url"] = value{setting: byName["nats-url"], text: defaultNATSURL}
	}
	return vals, a.checkLibpqVariables(vals)
}

// checkLibpqVariables looks at PGPORT, PGSSLMODE and the like when they alone say where
// PostgreSQL is, and learns the password that they or a password file add.
func (a *app) checkLibpqVariables(vals values) error {
	text := vals.str("database-url")
	if !vals.given("database-url") { // else it was checked with them already
		if err := checkDatabaseURL("application_name=outbox-cdc"); err != nil {
			return fault.NewUsage(fmt.Sprintf("the environment (PG* variables) %v", err), "give --database-url, or check PGHOST, PGPORT, PGSSLMODE and the others")
		}
	}
	if cfg, err := pgconn.ParseConfig(text); err == nil {
		a.secrets.Add(cfg.Password, cfg.User, cfg.Host, cfg.Database)
	}
	return nil
}

func (a *app) fromFlagOrEnv(c *urfave.Context, s setting) value {
	for _, ctx := range c.Lineage() {
		if ctx.App == nil {
			break // the library's root context carries no flags
		}
		if slices.Contains(ctx.LocalFlagNames(), s.name) {
			if s.repeats {
				list := ctx.StringSlice(s.name)
				return value{setting: s, text: strings.Join(list, ","), list: list, origin: "--" + s.name}
			}
			return value{setting: s, text: fmt.Sprint(ctx.Value(s.name)), origin: "--" + s.name}
		}
	}
	for _, name := range []string{envName(s.name), alsoRead[s.name]} {
		if text, ok := a.environ(name); ok {
			return value{setting: s, text: text, origin: name}
		}
	}
	return value{setting: s}
}

// environ returns a variable that is set and not empty.
func (a *app) environ(name string) (string, bool) {
	text := a.variables[name]
	return text, text != ""
}

func (a *app) learnSecret(s setting, text string) {
	switch s.name {
	case "database-url":
		a.secrets.AddDatabaseURL(text)
	case "nats-url":
		a.secrets.AddNATSURL(text)
	}
}

// check returns the usage error that names where the wrong value came from.
func (v value) check() error {
	if v.setting.isSwitch() {
		if _, err := strconv.ParseBool(v.text); err != nil {
			return fault.NewUsage(fmt.Sprintf("%s %q is not true or false", v.origin, v.text), "write true or false")
		}
		return nil
	}
	if v.setting.check == nil {
		return nil
	}
	for _, text := range v.list {
		if err := v.setting.check(text); err != nil {
			return value{setting: v.setting, text: text, origin: v.origin, command: v.command}.wrong(err)
		}
	}
	if len(v.list) > 0 {
		return nil
	}
	if err := v.setting.check(v.text); err != nil {
		return v.wrong(err)
	}
	return nil
}

func (v value) wrong(err error) error {
	hint := fmt.Sprintf("outbox-cdc %s --help describes --%s", v.command, v.setting.name)
	if known, ok := err.(interface{ Hint() string }); ok {
		return fault.NewUsage(v.from()+": "+err.Error(), known.Hint())
	}
	if v.setting.secret {
		return fault.NewUsage(v.from()+" "+err.Error(), hint)
	}
	return fault.NewUsage(fmt.Sprintf("%s %q %v", v.from(), v.text, err), hint)
}

func (v value) from() string {
	if v.origin == "" {
		return "--" + v.setting.name
	}
	return v.origin
}

// wrong names the setting in an error about its value.
func (v values) wrong(name string, err error) error { return v[name].wrong(err) }

// given reports whether a setting was set anywhere.
func (v values) given(name string) bool { return v[name].origin != "" }

// has reports whether the command takes the setting.
func (v values) has(name string) bool { _, ok := v[name]; return ok }

// str returns the text of a setting; asking for one that the command does not take is a
// mistake in the program.
func (v values) str(name string) string {
	got, ok := v[name]
	if !ok {
		panic("cli: the command does not take --" + name)
	}
	return got.text
}

// list returns the values of a setting that repeats; from the environment or a file it is one.
func (v values) list(name string) []string {
	if got := v[name]; len(got.list) > 0 {
		return got.list
	}
	if text := v.str(name); text != "" {
		return []string{text}
	}
	return nil
}

// withDefaults adds settings that the command does not take, with their defaults.
func (v values) withDefaults(settings []setting) values {
	all := maps.Clone(v)
	for _, s := range settings {
		if !all.has(s.name) {
			all[s.name] = value{setting: s, text: s.def}
		}
	}
	return all
}

func (v values) on(name string) bool {
	text := v.str(name)
	return text != "" && text != "false" && must(strconv.ParseBool(text))
}

// duration returns 0 for the words off and none.
func (v values) duration(name string) time.Duration {
	if v.isWord(name) {
		return 0
	}
	return must(parseDuration(v.str(name)))
}

// size returns bytes, and 0 for the words off and none.
func (v values) size(name string) int64 {
	if v.isWord(name) {
		return 0
	}
	return must(parseSize(v.str(name)))
}

func (v values) integer(name string) int { return must(strconv.Atoi(v.str(name))) }

func (v values) isWord(name string) bool {
	text := v.str(name)
	return text == "off" || text == "none"
}

// publication returns the publication's exact name: the slot's when none is given.
func (v values) publication() string {
	if !v.given("publication") {
		return v.str("slot")
	}
	return must(parsePublication(v.str("publication")))
}

// source returns the outbox's name in the stream: the slot's when none is given.
func (v values) source() string {
	if !v.given("source") {
		return v.str("slot")
	}
	return v.str("source")
}

// flags choose the same outbox once more, for a command in a hint.
func (v values) flags() string {
	return provision.Flags(provision.Names{Slot: v.str("slot"), Table: v.table()}, v.str("stream"), v.source())
}

func (v values) table() decode.TableName { return must(decode.ParseTableName(v.str("table"))) }

func (v values) mapping() (decode.Mapping, error) {
	mapping, err := decode.ParseMapping(v.str("columns"))
	if err != nil {
		return decode.Mapping{}, v.wrong("columns", err)
	}
	return mapping, nil
}

// must returns what a check has already accepted.
func must[T any](got T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("cli: a value passed its check and does not parse: %v", err))
	}
	return got
}
