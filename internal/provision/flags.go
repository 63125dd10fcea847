package provision

import "strings"

// Flags are the flags by which a command chooses this outbox, each with a blank before it, to
// be put behind a command in a hint: those that are not the defaults. Addresses are never
// among them, since they may hold passwords.
func Flags(names Names, stream, source string) string {
	var b strings.Builder
	add := func(flag, value, byDefault string) {
		if value != byDefault {
			b.WriteString(" --" + flag + " " + Quote(value))
		}
	}
	add("slot", names.Slot, "outbox")
	add("table", names.Table.String(), "public.outbox")
	add("stream", stream, "OUTBOX")
	add("source", source, names.Slot)
	return b.String()
}

// Quote writes a word as a shell reads it.
func Quote(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-.,:/@%+=", r)
	}
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool { return !plain(r) }) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
