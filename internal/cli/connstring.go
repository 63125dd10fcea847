package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// The texts of parsers repeat what they could not parse, and thereby pieces of
// passwords. So connection strings are looked at here first, and none of the
// errors below repeats any part of one but a key or a known word.

var errUserInfo = errors.New("is not a valid URL: a user name or password holds a bare @ / ? # , or %; write those percent-encoded (@ as %40, / as %2F, ? as %3F, # as %23, comma as %2C, % as %25)")

var errNATSPath = errors.New("has a path or a query, which a NATS URL does not have; in a password write / as %2F and ? as %3F")

var sslModes = []string{"disable", "allow", "prefer", "require", "verify-ca", "verify-full"}

// checkDatabaseURL accepts what pgx accepts, and says what is wrong without repeating it.
func checkDatabaseURL(text string) error {
	if scheme, rest, isURL := strings.Cut(text, "://"); isURL && !strings.ContainsAny(scheme, " =") {
		if scheme != "postgres" && scheme != "postgresql" {
			return errors.New("is not a PostgreSQL URL: it begins with postgres:// or postgresql://")
		}
		if err := checkURLShape(rest, true); err != nil {
			return err
		}
	} else if !strings.Contains(text, "=") {
		return errors.New("is neither a URL (postgres://user:password@host:5432/database) nor keywords (host=... dbname=...)")
	}
	_, err := pgconn.ParseConfig(text)
	if err == nil {
		return nil
	}
	return databaseURLError(text, err)
}

// databaseURLError turns a parse error into a sentence that holds no piece of the string.
func databaseURLError(text string, err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return fmt.Errorf("names a file that cannot be read: %w", pathErr)
	}
	if mode, ok := connOption(text, "sslmode"); ok && !slices.Contains(sslModes, mode) {
		return fmt.Errorf("has a wrong sslmode (one of %s)", strings.Join(sslModes, ", "))
	}
	if port, ok := connOption(text, "port"); ok && !validPorts(port) {
		return errors.New("has a wrong port (1 to 65535)")
	}
	for _, key := range []string{"connect_timeout", "target_session_attrs", "channel_binding", "require_auth", "sslcertmode", "sslnegotiation", "min_protocol_version", "max_protocol_version", "service", "sslrootcert", "sslcert", "sslkey"} {
		if value, ok := connOption(text, key); ok && parsesWithout(text, key, value) {
			return fmt.Errorf("has a wrong value for %s", key)
		}
	}
	return errors.New("cannot be parsed as a PostgreSQL connection string (values with spaces or quotes stand in single quotes, with \\ before ' and \\)")
}

// parsesWithout reports whether key's value is what the parser stumbles over.
func parsesWithout(text, key, value string) bool {
	for _, pair := range []string{key + "=" + value, key + "=" + url.QueryEscape(value), key + "='" + value + "'"} {
		if before, after, found := strings.Cut(text, pair); found {
			if _, err := pgconn.ParseConfig(before + strings.TrimPrefix(after, "&")); err == nil {
				return true
			}
		}
	}
	return false
}

// connOption finds the value of a plain option in either form.
func connOption(text, key string) (string, bool) {
	separators := func(r rune) bool { return r == ' ' || r == '\t' || r == '\n' }
	if strings.Contains(text, "://") {
		_, query, _ := strings.Cut(text, "?")
		text = query
		separators = func(r rune) bool { return r == '&' }
	}
	for _, option := range strings.FieldsFunc(text, separators) {
		if name, value, found := strings.Cut(option, "="); found && name == key {
			if decoded, err := url.QueryUnescape(value); err == nil {
				value = decoded
			}
			return strings.Trim(value, "'"), true
		}
	}
	return "", false
}

func validPorts(text string) bool {
	for port := range strings.SplitSeq(text, ",") {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return false
		}
	}
	return true
}

// checkURLShape looks at what follows the scheme: user information without bare
// delimiters, hosts, and ports that are numbers.
func checkURLShape(rest string, severalHosts bool) error {
	if strings.Contains(rest, "#") {
		return errUserInfo
	}
	beforeQuery, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(beforeQuery, "/")
	if strings.Count(authority, "@") > 1 || strings.Contains(path, "@") ||
		strings.Contains(query, "@") && !strings.Contains(authority, "@") && path == "" && (strings.Contains(authority, ":") || !severalHosts) {
		return errUserInfo
	}
	hosts := authority
	if userinfo, after, found := strings.Cut(authority, "@"); found {
		if _, err := url.PathUnescape(userinfo); err != nil {
			return errUserInfo
		}
		hosts = after
	}
	if !severalHosts && hosts == "" {
		return errors.New("has no host")
	}
	for host := range strings.SplitSeq(hosts, ",") {
		if err := checkHostPort(host); err != nil {
			return err
		}
	}
	return nil
}

func checkHostPort(host string) error {
	if strings.HasPrefix(host, "[") {
		_, after, shut := strings.Cut(host, "]")
		if !shut || after != "" && !strings.HasPrefix(after, ":") {
			return errors.New("has a wrong IPv6 address (write it as [::1]:5432)")
		}
		host = after
	} else if strings.Count(host, ":") > 1 {
		return errors.New("has a wrong host (an IPv6 address stands in brackets, as [::1]:5432)")
	}
	if _, port, found := strings.Cut(host, ":"); found && port != "" && !validPorts(port) {
		return errors.New("has a wrong port (1 to 65535)")
	}
	return nil
}

var natsSchemes = []string{"nats", "tls", "ws", "wss"}

// checkNATSURL accepts one or more servers, comma separated, with or without a scheme.
func checkNATSURL(text string) error {
	withoutUser := false // some server before has no user information
	for server := range strings.SplitSeq(text, ",") {
		server = strings.TrimSpace(server)
		scheme, rest, found := strings.Cut(server, "://")
		if !found {
			scheme, rest = "nats", server
		}
		hasUser := strings.Contains(rest, "@")
		if hasUser && !found && withoutUser {
			return errUserInfo // rather a password with a comma in it than two servers
		}
		withoutUser = withoutUser || !hasUser
		if !slices.Contains(natsSchemes, scheme) {
			return fmt.Errorf("is not a NATS URL: it begins with one of %s://", strings.Join(natsSchemes, "://, "))
		}
		if rest == "" {
			return errors.New("has an empty server in it")
		}
		if err := checkURLShape(rest, false); err != nil {
			return err
		}
		if _, more, _ := strings.Cut(rest, "/"); more != "" || strings.Contains(rest, "?") {
			return errNATSPath
		}
		if _, err := url.Parse(scheme + "://" + rest); err != nil {
			return errors.New("is not a valid NATS URL (nats://user:password@host:4222)")
		}
	}
	return nil
}
