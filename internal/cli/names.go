package cli

import (
	"fmt"
	"mime"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

const (
	identifierMax = 63   // bytes, NAMEDATALEN - 1
	streamNameMax = 255  // bytes, as nats-server bounds it
	sourceMax     = 128  // bytes
	subjectMax    = 1024 // bytes
)

func checkSlot(text string) error {
	if len(text) < 1 || len(text) > identifierMax || strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
		return fmt.Errorf("is not a slot name (1 to 63 of a-z, 0-9 and _)")
	}
	return nil
}

// parsePublication takes a name as it is, or in double quotes as in SQL.
func parsePublication(text string) (string, error) {
	name := text
	if strings.HasPrefix(text, `"`) {
		inner, ok := strings.CutSuffix(text[1:], `"`)
		if !ok || len(text) < 2 || strings.Contains(strings.ReplaceAll(inner, `""`, ""), `"`) {
			return "", fmt.Errorf(`is not a publication name: the double quotes do not match`)
		}
		name = strings.ReplaceAll(inner, `""`, `"`)
	}
	switch {
	case name == "":
		return "", fmt.Errorf("is not a publication name: it is empty")
	case len(name) > identifierMax:
		return "", fmt.Errorf("is not a publication name: it is longer than %d bytes", identifierMax)
	case strings.ContainsRune(name, 0):
		return "", fmt.Errorf("is not a publication name: it holds a zero byte")
	}
	return name, nil
}

func checkPublication(text string) error {
	_, err := parsePublication(text)
	return err
}

func checkTable(text string) error {
	_, err := decode.ParseTableName(text)
	return err
}

func checkColumns(text string) error {
	_, err := decode.ParseMapping(text)
	return err
}

func checkStream(text string) error {
	if text == "" || len(text) > streamNameMax || strings.ContainsFunc(text, func(r rune) bool {
		return r <= ' ' || r == 0x7f || strings.ContainsRune(`.*>/\`, r)
	}) {
		return fmt.Errorf(`is not a stream name (no spaces, none of . * > / \, at most %d bytes)`, streamNameMax)
	}
	return nil
}

// checkSubject looks at what no mapping can mend; the rest waits until the mapping is known.
func checkSubject(text string) error {
	if text == "" || len(text) > subjectMax {
		return fmt.Errorf("is not a subject template (1 to %d bytes)", subjectMax)
	}
	if strings.HasPrefix(text, "$") || strings.HasPrefix(text, "_INBOX") {
		return fmt.Errorf("is not a subject template: subjects that begin with $ or _INBOX belong to NATS")
	}
	return nil
}

func checkSource(text string) error {
	if text == "" || len(text) > sourceMax || strings.ContainsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._:-", r)
	}) {
		return fmt.Errorf("is not a source name (1 to %d of A-Z, a-z, 0-9 and . _ : -)", sourceMax)
	}
	return nil
}

func checkContentType(text string) error {
	if _, _, err := mime.ParseMediaType(text); err != nil || !printable(text) {
		return fmt.Errorf("is not a media type (such as application/json)")
	}
	return nil
}

func printable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f })
}

func checkListenAddress(text string) error {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return fmt.Errorf("must be an address such as 127.0.0.1:9477 or :9477")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(n, 10) != port {
		return fmt.Errorf("must be an address whose port is a number up to 65535, not %q", port)
	}
	if strings.ContainsAny(host, " /") {
		return fmt.Errorf("must be an address of a host, not of %q", host)
	}
	return nil
}

func readableFile(text string) error {
	f, err := os.Open(text)
	if err != nil {
		return fmt.Errorf("cannot be read: %w", err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return fmt.Errorf("is a directory, not a file")
	}
	return nil
}
