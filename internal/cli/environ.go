package cli

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

const envPrefix = "OUTBOX_CDC_"

// ofKubernetes matches the variables that every container gets for a service of the name
// outbox-cdc.
var ofKubernetes = regexp.MustCompile(`^OUTBOX_CDC_(SERVICE_(HOST|PORT(_.+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_.+)?)?)$`)

// envName is the variable of a setting.
func envName(name string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// warnOfVariables tells of variables with our prefix that are no setting of any command.
// That is no error: a process inherits what was meant for another one.
func (a *app) warnOfVariables(in *invocation) {
	flags := slices.Sorted(maps.Keys(a.known))
	for _, name := range slices.Sorted(maps.Keys(a.variables)) {
		rest, ours := strings.CutPrefix(name, envPrefix)
		flag := strings.ToLower(strings.ReplaceAll(rest, "_", "-"))
		if _, known := a.known[flag]; !ours || known && name == envName(flag) || ofKubernetes.MatchString(name) {
			continue
		}
		hint := "outbox-cdc COMMAND --help lists the flags; each has a variable"
		if near := nearest(flag, flags); near != "" {
			hint = "did you mean " + envName(near) + "?"
		}
		in.log.Warn("an environment variable belongs to no flag", "name", name, "hint", hint)
	}
}
