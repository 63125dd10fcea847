package replication

import (
	"context"
	"fmt"
	"slices"
)

// TableInfo is a table as the catalog has it.
type TableInfo struct {
	Schema, Name string
	OID          uint32
	Kind         TableKind
	Unlogged     bool
	Owner        string
	Selectable   bool // our role may read it
	Columns      []ColumnInfo
	Leaves       []TableID // leaf partitions of a partitioned table
}

// TableID is the exact name of a table.
type TableID struct {
	Schema, Name string
}

// TableKind is pg_class.relkind.
type TableKind string

// The kinds that can be told apart by their name. Only the first two can be published.
const (
	KindTable       TableKind = "r"
	KindPartitioned TableKind = "p"
	KindView        TableKind = "v"
	KindMatview     TableKind = "m"
	KindForeign     TableKind = "f"
)

// String names the kind in PostgreSQL's words.
func (k TableKind) String() string {
	switch k {
	case KindTable:
		return "table"
	case KindPartitioned:
		return "partitioned table"
	case KindView:
		return "view"
	case KindMatview:
		return "materialized view"
	case KindForeign:
		return "foreign table"
	default:
		return fmt.Sprintf("relation of kind %q", string(k))
	}
}

// ColumnInfo is a column of a table.
type ColumnInfo struct {
	Name      string
	TypeOID   uint32
	Type      string // as format_type writes it
	NotNull   bool
	Generated bool // GENERATED ALWAYS AS (...): not streamed
}

// Column returns the column of that name, or nil.
func (t *TableInfo) Column(name string) *ColumnInfo {
	i := slices.IndexFunc(t.Columns, func(c ColumnInfo) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &t.Columns[i]
}

// Table looks a table up by its exact name; nil without error means that there is none.
func (a *Admin) Table(ctx context.Context, schema, name string) (*TableInfo, error) {
	t := TableInfo{Schema: schema, Name: name}
	found, err := a.Lookup(ctx, []any{&t.OID, (*string)(&t.Kind), &t.Unlogged, &t.Owner, &t.Selectable}, `
		SELECT c.oid, c.relkind::text, c.relpersistence = 'u', pg_get_userbyid(c.relowner)::text,
		       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p', 'v', 'm', 'f')`, schema, name)
	if err != nil {
		return nil, fmt.Errorf("read table %s: %w", QuoteName(schema, name), err)
	}
	if !found {
		return nil, nil
	}
	if err := a.readColumns(ctx, &t); err != nil {
		return nil, err
	}
	if t.Kind == KindPartitioned {
		if err := a.readLeaves(ctx, &t); err != nil {
			return nil, err
		}
	}
	return &t, nil
}

func (a *Admin) readColumns(ctx context.Context, t *TableInfo) error {
	rows, err := a.conn.Query(ctx, `
		SELECT attname::text, atttypid, format_type(atttypid, atttypmod), attnotnull, attgenerated <> ''
		FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped ORDER BY attnum`, t.OID)
	if err != nil {
		return fmt.Errorf("read columns of %s: %w", QuoteName(t.Schema, t.Name), err)
	}
	defer rows.Close()
	for rows.Next() {
		var c ColumnInfo
		if err := rows.Scan(&c.Name, &c.TypeOID, &c.Type, &c.NotNull, &c.Generated); err != nil {
			return fmt.Errorf("read columns of %s: %w", QuoteName(t.Schema, t.Name), err)
		}
		t.Columns = append(t.Columns, c)
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read columns of %s: %w", QuoteName(t.Schema, t.Name), err)
	}
	return nil
}

func (a *Admin) readLeaves(ctx context.Context, t *TableInfo) error {
	rows, err := a.conn.Query(ctx, `
		SELECT n.nspname::text, c.relname::text
		FROM pg_partition_tree($1::oid::regclass) p JOIN pg_class c ON c.oid = p.relid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE p.isleaf AND c.relkind <> 'p' ORDER BY 1, 2`, t.OID)
	if err != nil {
		return fmt.Errorf("read partitions of %s: %w", QuoteName(t.Schema, t.Name), err)
	}
	defer rows.Close()
	for rows.Next() {
		var leaf TableID
		if err := rows.Scan(&leaf.Schema, &leaf.Name); err != nil {
			return fmt.Errorf("read partitions of %s: %w", QuoteName(t.Schema, t.Name), err)
		}
		t.Leaves = append(t.Leaves, leaf)
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read partitions of %s: %w", QuoteName(t.Schema, t.Name), err)
	}
	return nil
}

// SchemaExists reports whether the database has a schema of that name.
func (a *Admin) SchemaExists(ctx context.Context, schema string) (bool, error) {
	var exists bool
	err := a.conn.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1)`, schema).Scan(&exists)
	if err != nil {
		return false, fmt.Errorf("read schema %q: %w", schema, err)
	}
	return exists, nil
}

// SimilarTables lists tables whose name or schema differs only in upper and lower case,
// for the hint after a name that was folded by mistake.
func (a *Admin) SimilarTables(ctx context.Context, name string) ([]TableID, error) {
	rows, err := a.conn.Query(ctx, `
		SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE lower(c.relname) = lower($1) AND c.relkind IN ('r', 'p') AND n.nspname NOT LIKE 'pg\_%' ORDER BY 1, 2 LIMIT 5`, name)
	if err != nil {
		return nil, fmt.Errorf("look for tables named like %q: %w", name, err)
	}
	defer rows.Close()
	var list []TableID
	for rows.Next() {
		var t TableID
		if err := rows.Scan(&t.Schema, &t.Name); err != nil {
			return nil, fmt.Errorf("look for tables named like %q: %w", name, err)
		}
		list = append(list, t)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("look for tables named like %q: %w", name, err)
	}
	return list, nil
}
