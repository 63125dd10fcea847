package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

func completionCommand() command {
	return command{
		name: "completion", usage: "print the shell completion for bash or zsh",
		example: "source <(outbox-cdc completion bash)",
		without: allCommon(),
		commands: []command{
			{
				name: "bash", usage: "for bash",
				example: "outbox-cdc completion bash > /etc/bash_completion.d/outbox-cdc",
				without: allCommon(),
				run:     func(_ context.Context, in *invocation) error { return printf(in.stdout, "%s", bashCompletion()) },
			},
			{
				name: "zsh", usage: "for zsh",
				example: "outbox-cdc completion zsh > \"${fpath[1]}/_outbox-cdc\"",
				without: allCommon(),
				run:     func(_ context.Context, in *invocation) error { return printf(in.stdout, "%s", zshCompletion()) },
			},
		},
	}
}

// completionCase is what can follow one command path.
type completionCase struct {
	path     string // words of the path, such as "slot drop"; empty for the root
	commands []command
	flags    []setting
}

func completionCases() []completionCase {
	var cases []completionCase
	var walk func(path string, group command)
	walk = func(path string, group command) {
		flags := append(slices.Clone(group.settings), group.offered(commonSettings())...)
		cases = append(cases, completionCase{path: path, commands: group.commands, flags: flags})
		for _, cmd := range group.commands {
			walk(strings.TrimSpace(path+" "+cmd.name), cmd)
		}
	}
	walk("", command{commands: commands()})
	return cases
}

// flagChoices are the values that can be offered for a flag.
var flagChoices = map[string]string{
	"format": "envelope payload cloudevents", "headers": "full minimal", "log-format": "text json",
	"log-level": "debug info warn error", "replicas": "1 3 5",
}

const fileFlags = "config nats-creds nats-nkey-file nats-ca nats-cert nats-key"

func bashCompletion() string {
	var b strings.Builder
	b.WriteString("# bash completion for outbox-cdc\n_outbox_cdc() {\n" +
		"  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} at='' word skip=''\n" +
		"  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n" +
		"    if [[ -n $skip ]]; then skip=''; continue; fi\n" +
		"    case $word in\n      --*=*) ;;\n")
	fmt.Fprintf(&b, "      %s) ;;\n", strings.Join(switches(), "|"))
	b.WriteString("      --*) skip=1 ;;\n      *) at=\"${at:+$at }$word\" ;;\n    esac\n  done\n  case $prev in\n")
	for _, name := range []string{"format", "headers", "log-format", "log-level", "replicas"} {
		fmt.Fprintf(&b, "    --%s) COMPREPLY=($(compgen -W '%s' -- \"$cur\")); return ;;\n", name, flagChoices[name])
	}
	fmt.Fprintf(&b, "    --%s) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n  esac\n", strings.ReplaceAll(fileFlags, " ", "|--"))
	b.WriteString("  [[ -n $skip ]] && return\n  local words=''\n  case $at in\n")
	for _, c := range completionCases() {
		fmt.Fprintf(&b, "    '%s') words='%s' ;;\n", c.path, strings.Join(completionWords(c), " "))
	}
	b.WriteString("  esac\n  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\ncomplete -F _outbox_cdc outbox-cdc\n")
	return b.String()
}

// switches are the flags that take no value: the word after one is not its value.
func switches() []string {
	seen := map[string]bool{"--help": true, "-h": true}
	list := []string{"--help", "-h"}
	for _, c := range completionCases() {
		for _, s := range c.flags {
			if name := "--" + s.name; s.isSwitch() && !seen[name] {
				seen[name] = true
				list = append(list, name)
			}
		}
	}
	return list
}

func completionWords(c completionCase) []string {
	var words []string
	for _, cmd := range c.commands {
		words = append(words, cmd.name)
	}
	for _, s := range c.flags {
		words = append(words, "--"+s.name)
	}
	return append(words, "--help")
}

func zshCompletion() string {
	var b strings.Builder
	b.WriteString("#compdef outbox-cdc\n# zsh completion for outbox-cdc\n_outbox_cdc() {\n" +
		"  local at='' word skip='' prev=${words[CURRENT-1]}\n  local -a offered\n" +
		"  for word in ${words[2,CURRENT-1]}; do\n" +
		"    if [[ -n $skip ]]; then skip=''; continue; fi\n" +
		"    case $word in\n      --*=*) ;;\n")
	fmt.Fprintf(&b, "      %s) ;;\n", strings.Join(switches(), "|"))
	b.WriteString("      --*) skip=1 ;;\n      *) at=\"${at:+$at }$word\" ;;\n    esac\n  done\n  case $prev in\n")
	for _, name := range []string{"format", "headers", "log-format", "log-level", "replicas"} {
		fmt.Fprintf(&b, "    --%s) compadd -- %s; return ;;\n", name, flagChoices[name])
	}
	fmt.Fprintf(&b, "    --%s) _files; return ;;\n  esac\n", strings.ReplaceAll(fileFlags, " ", "|--"))
	b.WriteString("  [[ -n $skip ]] && return\n  case $at in\n")
	for _, c := range completionCases() {
		fmt.Fprintf(&b, "    '%s') offered=(\n", c.path)
		for _, cmd := range c.commands {
			fmt.Fprintf(&b, "      %s\n", zshWord(cmd.name, cmd.usage))
		}
		for _, s := range c.flags {
			fmt.Fprintf(&b, "      %s\n", zshWord("--"+s.name, s.usage))
		}
		b.WriteString("    ) ;;\n")
	}
	b.WriteString("  esac\n  _describe 'outbox-cdc' offered\n}\n" +
		"if [[ $funcstack[1] == _outbox-cdc ]]; then _outbox_cdc \"$@\"; else compdef _outbox_cdc outbox-cdc; fi\n")
	return b.String()
}

func zshWord(word, usage string) string {
	text := word + ":" + strings.ReplaceAll(usage, ":", `\:`)
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
