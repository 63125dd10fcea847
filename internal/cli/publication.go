package cli

import (
	"context"
	"fmt"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/provision"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

func publicationCommand() command {
	return command{
		name: "publication", usage: "create, drop, show: the publication",
		long:    "The publication says which tables the slot streams. It has to be made before the slot.",
		example: "outbox-cdc publication show --publication outbox",
		commands: []command{
			{
				name: "create", usage: "make the publication for --table",
				long:     "It publishes inserts alone. One that is there and fits is left as it is.",
				example:  "outbox-cdc publication create --dry-run",
				settings: []setting{dryRunSetting("print the SQL, change nothing"), jsonSetting()},
				run:      runPublicationCreate,
			},
			{
				name: "drop", usage: "remove the publication",
				long: "What is lost: every slot that is read with it breaks, also when it is made again under the same\n" +
					"name. On PostgreSQL 18 the rows committed in between are skipped without an error; before that\n" +
					"the slot has to be made anew. Stop the forwarder and drop the slot first.",
				example:  "outbox-cdc publication drop --publication outbox --dry-run",
				settings: []setting{yesSetting(), dryRunSetting("print the SQL, change nothing"), jsonSetting()},
				run:      runPublicationDrop,
			},
			{
				name: "show", usage: "the publication as the database has it",
				example:  "outbox-cdc publication show --json",
				settings: []setting{jsonSetting()},
				run:      runPublicationShow,
			},
		},
	}
}

func runPublicationCreate(ctx context.Context, in *invocation) error {
	return in.withAdmin(ctx, func(admin *replication.Admin) error {
		names, err := in.names()
		if err != nil {
			return err
		}
		pg, err := provision.Inspect(ctx, admin, names)
		if err != nil {
			return err
		}
		if pg.Table == nil {
			return fault.NewOperator("table-missing", fmt.Sprintf("table %s does not exist in database %s", names.Table, pg.Server.Database), "outbox-cdc migrate up", nil)
		}
		if pg.Publication != nil {
			if err := provision.PublicationFault(pg, names); err != nil {
				return err
			}
			return in.report("publication", names.Publication, provision.ResultExists, "")
		}
		if pg.Slot != nil {
			if err := printf(in.stderr, "warning: slot %s is older than this publication: it has to be made anew\n", names.Slot); err != nil {
				return err
			}
		}
		if in.on("dry-run") {
			sql := replication.CreatePublicationSQL(names.Publication, names.Table.Schema, names.Table.Name) + ";\n"
			return in.report("publication", names.Publication, provision.ResultMissing, sql)
		}
		if err := admin.CreatePublication(ctx, names.Publication, names.Table.Schema, names.Table.Name); err != nil {
			return err
		}
		return in.report("publication", names.Publication, provision.ResultCreated, "")
	})
}

func (in *invocation) publicationMissing() error {
	name := decode.QuoteIdentifier(in.publication())
	return fault.NewOperator("publication-missing", fmt.Sprintf("publication %s does not exist in this database", name), "outbox-cdc setup, or outbox-cdc publication create", nil)
}

func runPublicationDrop(ctx context.Context, in *invocation) error {
	if !in.on("dry-run") {
		if err := in.confirm("every slot that is read with it breaks"); err != nil {
			return err
		}
	}
	return in.withAdmin(ctx, func(admin *replication.Admin) error {
		info, err := admin.Publication(ctx, in.publication())
		if err != nil {
			return err
		}
		if info == nil {
			return in.publicationMissing()
		}
		if in.on("dry-run") {
			return in.report("publication", info.Name, "would be dropped", "DROP PUBLICATION "+replication.QuoteName(info.Name)+";\n")
		}
		if err := admin.DropPublication(ctx, info.Name); err != nil {
			return err
		}
		return in.report("publication", info.Name, "dropped", "")
	})
}

// publicationDocument is the JSON of publication show.
type publicationDocument struct {
	Name             string                   `json:"name"`
	Exists           bool                     `json:"exists"`
	Owner            string                   `json:"owner,omitempty"`
	AllTables        bool                     `json:"all_tables"`
	Publish          string                   `json:"publish"`
	ViaPartitionRoot bool                     `json:"publish_via_partition_root"`
	Tables           []publishedTableDocument `json:"tables"`
}

type publishedTableDocument struct {
	Name      string   `json:"name"`
	Columns   []string `json:"columns"`
	RowFilter *string  `json:"row_filter"`
}

func runPublicationShow(ctx context.Context, in *invocation) error {
	return in.withAdmin(ctx, func(admin *replication.Admin) error {
		info, err := admin.Publication(ctx, in.publication())
		if err != nil {
			return err
		}
		document := publicationDocument{Name: in.publication(), Tables: []publishedTableDocument{}}
		if info != nil {
			document.Exists, document.Owner, document.AllTables = true, info.Owner, info.AllTables
			document.Publish, document.ViaPartitionRoot = info.Publishes(), info.ViaPartitionRoot
			for _, t := range info.Tables {
				name := decode.TableName{Schema: t.Schema, Name: t.Name}.String()
				document.Tables = append(document.Tables, publishedTableDocument{Name: name, Columns: t.Columns, RowFilter: t.RowFilter})
			}
		}
		if in.on("json") {
			if err := printJSON(in.stdout, document); err != nil {
				return err
			}
		}
		if info == nil {
			return in.publicationMissing()
		}
		if in.on("json") {
			return nil
		}
		return in.printPublication(document)
	})
}

func (in *invocation) printPublication(p publicationDocument) error {
	if err := printf(in.stdout, "publication %s\n  owner       %s\n  publishes   %s\n  via root    %t\n", p.Name, p.Owner, p.Publish, p.ViaPartitionRoot); err != nil {
		return err
	}
	for _, t := range p.Tables {
		filter := ""
		if t.RowFilter != nil {
			filter = " where " + *t.RowFilter
		}
		if err := printf(in.stdout, "  table       %s%s\n", t.Name, filter); err != nil {
			return err
		}
	}
	return nil
}
