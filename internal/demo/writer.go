package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/time/rate"
)

const (
	rollBackEvery = 10 // every tenth order is rolled back
	writeTimeout  = 10 * time.Second
)

const ordersTable = `create table if not exists public.orders (
	id         bigint generated always as identity primary key,
	customer   text not null,
	total      numeric(10, 2) not null,
	created_at timestamptz not null default now())`

var customers = []string{"Ada", "Grace", "Edsger", "Barbara", "Donald", "Frances", "Ken", "Radia"}

// writer writes orders over one connection of its own.
type writer struct {
	conn    *pgx.Conn
	insert  string // of an event
	limit   *rate.Limiter
	tally   *tally
	report  func(RolledBack)
	attempt int
}

func newWriter(ctx context.Context, cfg Config, t *tally) (*writer, error) {
	conn, err := pgx.Connect(ctx, cfg.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	if _, err := conn.Exec(ctx, ordersTable); err != nil {
		_ = conn.Close(ctx) // the first error tells more
		return nil, fmt.Errorf("create table orders: %w", err)
	}
	limit := rate.Inf
	if cfg.RateMax > 0 {
		limit = rate.Limit(cfg.RateMax)
	}
	return &writer{
		conn: conn, tally: t, report: cfg.OnRollBack, limit: rate.NewLimiter(limit, 1),
		insert: "insert into " + cfg.Table + ` (aggregate_type, aggregate_id, aggregate_version, event_type, payload)
			values ('order', $1::bigint::text, 1, 'placed', jsonb_build_object('order', $1::bigint, 'customer', $2::text, 'total', $3::text))
			returning event_id::text`,
	}, nil
}

// run writes orders until ordersMax are committed (0: no limit) or ctx is done. It does
// not stop in the middle of a transaction.
func (w *writer) run(ctx context.Context, ordersMax int) error {
	for ordersMax == 0 || w.tally.summary().Committed < ordersMax {
		if err := w.limit.Wait(ctx); err != nil {
			return nil //nolint:nilerr // ctx is done, or will be before the next order is due
		}
		if err := w.write(context.WithoutCancel(ctx)); err != nil {
			return fmt.Errorf("write order: %w", err)
		}
	}
	return nil
}

// write writes one order and its event in one transaction.
func (w *writer) write(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	tx, err := w.conn.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	defer tx.Rollback(ctx) //nolint:errcheck // of no effect after the end of the transaction
	w.attempt++
	customer := customers[w.attempt%len(customers)]
	total := fmt.Sprintf("%d.%02d", 5+7*w.attempt%190, 37*w.attempt%100)
	var number int64
	err = tx.QueryRow(ctx, "insert into public.orders (customer, total) values ($1, $2::text::numeric) returning id", customer, total).Scan(&number)
	if err != nil {
		return fmt.Errorf("insert into orders: %w", err)
	}
	var eventID string
	if err := tx.QueryRow(ctx, w.insert, number, customer, total).Scan(&eventID); err != nil {
		return fmt.Errorf("insert event of order %d: %w", number, err)
	}
	w.tally.begin(eventID)
	if w.attempt%rollBackEvery == 0 {
		if err := tx.Rollback(ctx); err != nil {
			return fmt.Errorf("roll back order %d: %w", number, err)
		}
		w.tally.rollBack(eventID)
		w.report(RolledBack{Order: number, EventID: eventID})
		return nil
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit order %d: %w", number, err)
	}
	w.tally.commit(eventID)
	return nil
}
