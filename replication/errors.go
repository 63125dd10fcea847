package replication

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// SQLState returns the SQLSTATE of the server's answer in err's chain, or "" when
// the failure did not come from the server (a refused or broken connection).
func SQLState(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}

// SettingError says that the connection string names a setting that the server does not
// know. Its SQLSTATE is that of a missing slot, hence a type of its own.
type SettingError struct{ err error }

// Error returns the server's words.
func (e *SettingError) Error() string { return e.err.Error() }

// Hint says what to look at.
func (e *SettingError) Hint() string {
	return "look at the options in --database-url: what libpq does not know is a setting of the server"
}

const stateUndefinedObject = "42704"

// ErrStreamEnded says that the server ended the stream in good order, as it does
// when it shuts down.
var ErrStreamEnded = errors.New("the server ended the replication stream")

// NoticeError is a warning that the server sent inside the stream. PostgreSQL 18
// reports a missing publication in no other way, while it drops the rows.
type NoticeError struct {
	Severity string
	SQLState string
	Message  string
	// SourceFile is the file of the server's source that warned, whatever the language of
	// the message.
	SourceFile string
}

// SkipsPublication tells whether the output plugin says that it leaves out a publication
// that it does not find, and with it the rows. Other parts of the server warn with the
// same SQLSTATE of what passes, such as a standby in synchronized_standby_slots that is away.
func (e *NoticeError) SkipsPublication() bool {
	const objectNotInPrerequisiteState = "55000"
	return e.SQLState == objectNotInPrerequisiteState && e.SourceFile == "pgoutput.c"
}

// Error returns the server's words.
func (e *NoticeError) Error() string {
	return e.Severity + " " + e.SQLState + ": " + e.Message
}

// maskConnectError strips what pgx repeats of the connection string from its
// errors; the server's own answer and the network's stay.
func maskConnectError(err error) error {
	var parse *pgconn.ParseConfigError
	if errors.As(err, &parse) {
		return errors.New("not a valid connection string (URL or keyword form)")
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		if pgErr.Code == stateUndefinedObject {
			return &SettingError{pgErr}
		}
		return pgErr
	}
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) {
		if inner := connect.Unwrap(); inner != nil {
			return inner
		}
	}
	return err
}
