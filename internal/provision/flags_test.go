package provision

import (
	"testing"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

func TestHintsNameWhatChoosesAnotherOutbox(t *testing.T) {
	names := Names{Slot: "outbox", Table: decode.TableName{Schema: "public", Name: "outbox"}}
	if got := Flags(names, "OUTBOX", "outbox"); got != "" {
		t.Errorf("%q for the defaults", got)
	}
	other := Names{Slot: "shop", Table: decode.TableName{Schema: "Billing-EU", Name: "it's"}}
	if got, want := Flags(other, "S", "till"), ` --slot shop --table '"Billing-EU"."it'\''s"' --stream S --source till`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := Flags(Names{Slot: "shop", Table: names.Table}, "OUTBOX", "shop"), " --slot shop"; got != want {
		t.Errorf("got %q, want %q: the source is the slot's name", got, want)
	}
}
