package replication

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

// Listen subscribes the connection to a channel of NOTIFY.
func (a *Admin) Listen(ctx context.Context, channel string) error {
	if _, err := a.conn.Exec(ctx, "LISTEN "+QuoteName(channel)); err != nil {
		return fmt.Errorf("listen on channel %q: %w", channel, err)
	}
	return nil
}

// AwaitNotification waits until a notification has arrived, at most for a while. False
// without error says that none came.
func (a *Admin) AwaitNotification(ctx context.Context, most time.Duration) (bool, error) {
	limited, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	a.idle = true
	_, err := a.conn.WaitForNotification(limited)
	a.idle = false
	switch {
	case err == nil:
		return true, nil
	case ctx.Err() != nil:
		return false, ctx.Err()
	case limited.Err() != nil && !a.conn.IsClosed():
		return false, nil
	default:
		return false, fmt.Errorf("wait for a notification: %w", err)
	}
}

// cancelHandler ends what the connection does when a context ends: a statement is
// cancelled on the server too, so that nothing goes on there unseen; where it only waits
// for notifications there is nothing to cancel.
type cancelHandler struct {
	statement pgconn.CancelRequestContextWatcherHandler
	pg        *pgconn.PgConn
	admin     *Admin
	idle      bool // what HandleCancel ended
}

var _ ctxwatch.Handler = (*cancelHandler)(nil)

// HandleCancel implements ctxwatch.Handler.
func (h *cancelHandler) HandleCancel(ctx context.Context) {
	if h.idle = h.admin.idle; h.idle {
		_ = h.pg.Conn().SetDeadline(time.Now()) // it fails on a closed connection only
		return
	}
	h.statement.HandleCancel(ctx)
}

// HandleUnwatchAfterCancel implements ctxwatch.Handler.
func (h *cancelHandler) HandleUnwatchAfterCancel() {
	if h.idle {
		_ = h.pg.Conn().SetDeadline(time.Time{}) // as above
		return
	}
	h.statement.HandleUnwatchAfterCancel()
}
