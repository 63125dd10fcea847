package replication

import (
	"context"
	"fmt"
	"strings"
)

// PublicationInfo is a publication as the catalog has it.
type PublicationInfo struct {
	Name             string
	Owner            string
	AllTables        bool
	Insert           bool
	Update           bool
	Delete           bool
	Truncate         bool
	ViaPartitionRoot bool
	Tables           []PublishedTable // a partitioned table or its leaves, by ViaPartitionRoot
}

// PublishedTable is a table of a publication.
type PublishedTable struct {
	Schema, Name string
	// Columns are the published ones; nil where the server version (14) does not tell.
	Columns   []string
	RowFilter *string // nil for all rows
}

// Lists reports whether the publication names that very table.
func (p *PublicationInfo) Lists(schema, name string) bool { return p.Find(schema, name) != nil }

// Find returns the entry of that table, or nil.
func (p *PublicationInfo) Find(schema, name string) *PublishedTable {
	for i := range p.Tables {
		if p.Tables[i].Schema == schema && p.Tables[i].Name == name {
			return &p.Tables[i]
		}
	}
	return nil
}

// Publishes returns the kinds of change that the publication sends, as in its SQL.
func (p *PublicationInfo) Publishes() string {
	var kinds []string
	for _, k := range []struct {
		on   bool
		name string
	}{{p.Insert, "insert"}, {p.Update, "update"}, {p.Delete, "delete"}, {p.Truncate, "truncate"}} {
		if k.on {
			kinds = append(kinds, k.name)
		}
	}
	return strings.Join(kinds, ", ")
}

// columnListsSince is the first server version with row filters and column lists.
const columnListsSince = 150000

// Publication looks a publication up in the connection's database; nil without error
// means that there is none of that name.
func (a *Admin) Publication(ctx context.Context, name string) (*PublicationInfo, error) {
	p := PublicationInfo{Name: name}
	var version int
	found, err := a.Lookup(ctx, []any{&p.Owner, &p.AllTables, &p.Insert, &p.Update, &p.Delete, &p.Truncate, &p.ViaPartitionRoot, &version}, `
		SELECT pg_get_userbyid(pubowner)::text, puballtables, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot,
		       current_setting('server_version_num')::int
		FROM pg_publication WHERE pubname = $1`, name)
	if err != nil {
		return nil, fmt.Errorf("read publication %q: %w", name, err)
	}
	if !found {
		return nil, nil
	}
	lists := "NULL::text[], NULL::text"
	if version >= columnListsSince {
		lists = "attnames::text[], rowfilter"
	}
	rows, err := a.conn.Query(ctx, `SELECT schemaname::text, tablename::text, `+lists+` FROM pg_publication_tables WHERE pubname = $1 ORDER BY 1, 2`, name)
	if err != nil {
		return nil, fmt.Errorf("read tables of publication %q: %w", name, err)
	}
	defer rows.Close()
	for rows.Next() {
		var t PublishedTable
		if err := rows.Scan(&t.Schema, &t.Name, &t.Columns, &t.RowFilter); err != nil {
			return nil, fmt.Errorf("read tables of publication %q: %w", name, err)
		}
		p.Tables = append(p.Tables, t)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read tables of publication %q: %w", name, err)
	}
	return &p, nil
}

// CreatePublicationSQL is the statement that makes the publication for one table,
// partitioned or not.
func CreatePublicationSQL(name, schema, table string) string {
	return fmt.Sprintf("CREATE PUBLICATION %s FOR TABLE %s WITH (publish = 'insert', publish_via_partition_root = true)",
		QuoteName(name), QuoteName(schema, table))
}

// CreatePublication makes the publication. It needs the table's owner with CREATE on the database.
func (a *Admin) CreatePublication(ctx context.Context, name, schema, table string) error {
	if _, err := a.conn.Exec(ctx, CreatePublicationSQL(name, schema, table)); err != nil {
		return fmt.Errorf("create publication %q: %w", name, err)
	}
	return nil
}

// DropPublication removes a publication. Every slot that is read with it breaks.
func (a *Admin) DropPublication(ctx context.Context, name string) error {
	if _, err := a.conn.Exec(ctx, "DROP PUBLICATION "+QuoteName(name)); err != nil {
		return fmt.Errorf("drop publication %q: %w", name, err)
	}
	return nil
}
