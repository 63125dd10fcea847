package decode

import (
	"fmt"
	"slices"
)

// relation is a table as the last Relation message described it.
type relation struct {
	Relation
	state  acceptance
	layout *layout // of the outbox or an accepted relation, made before its first row
}

// acceptance says whether the rows of a relation are events.
type acceptance uint8

const (
	unasked acceptance = iota
	accepted
	refused
)

// layout says where the fields stand in a row of a relation. It is never changed once
// made, since events refer to it.
type layout struct {
	fields [NumFields]int // index of the column; absent if there is none
	extras []int
	used   []bool // by column: some field or extra reads it
	kinds  [NumFields]TypeKind
}

const absent = -1

// relation reads a Relation message: the layout of the rows that follow. It is for the
// relation with this OID alone; a partition root and its leaf come one after the other.
func (d *Decoder) relation(c *cursor) error {
	r := &relation{}
	r.OID = c.uint32()
	r.Schema = c.string()
	if r.Schema == "" {
		r.Schema = "pg_catalog"
	}
	r.Name = c.string()
	c.uint8() // replica identity
	n := int(c.uint16())
	const columnSizeMin = 1 + 1 + 4 + 4
	if c.err == nil && n > (len(c.msg)-c.off)/columnSizeMin {
		c.fail(CauseMalformed, "%d columns announced in %d bytes", n, len(c.msg)-c.off)
	}
	if c.err != nil {
		return c.err
	}
	r.Columns = make([]Column, 0, n)
	for range n {
		c.uint8() // flags: part of the key
		column := Column{Name: c.string(), TypeOID: c.uint32()}
		c.uint32() // type modifier
		column.Kind = d.kind(column.TypeOID)
		r.Columns = append(r.Columns, column)
	}
	if err := c.end(); err != nil {
		return err
	}
	if old := d.relations[r.OID]; old != nil && old.Table() == r.Table() {
		r.state = old.state
		d.reportGone(old, r)
	}
	d.relations[r.OID] = r
	d.last = nil
	return nil
}

func (d *Decoder) kind(oid uint32) TypeKind {
	if k := KindOfOID(oid); k != KindOther {
		return k
	}
	return d.types[oid]
}

// typ reads a Type message. It comes before the Relation message that uses the type, and
// names the base type of a domain under the domain's OID.
func (d *Decoder) typ(c *cursor) error {
	oid := c.uint32()
	schema := c.string()
	name := c.string()
	if err := c.end(); err != nil {
		return err
	}
	d.types[oid] = kindOfName(schema, name)
	return nil
}

// accept decides whether rows of r are events.
func (d *Decoder) accept(r *relation) (bool, error) {
	if r.state == unasked {
		ok := r.Table() == d.config.Table
		if !ok && d.config.AcceptRelation != nil {
			var err error
			if ok, err = d.config.AcceptRelation(r.Relation); err != nil {
				return false, fmt.Errorf("accept relation %s: %w", r.Table(), err)
			}
		}
		r.state = refused
		if ok {
			r.state = accepted
		}
	}
	return r.state == accepted, nil
}

// makeLayout finds the mapped columns of r by name.
func (d *Decoder) makeLayout(r *relation) error {
	l := &layout{used: make([]bool, len(r.Columns))}
	for i := range NumFields {
		f := Field(i)
		column := d.mapping.Column(f)
		at := r.find(column)
		l.fields[i] = at
		if at != absent {
			l.used[at] = true
			l.kinds[i] = r.Columns[at].Kind
		} else if d.mustExist(f) {
			return d.missing(r, f.String(), column)
		}
	}
	for _, x := range d.mapping.Extra() {
		at := r.find(x.Column)
		if at == absent {
			return d.missing(r, x.Name, x.Column)
		}
		l.used[at] = true
		l.extras = append(l.extras, at)
	}
	r.layout = l
	return nil
}

// find returns the index of the column of that name, or absent.
func (r *relation) find(name string) int {
	for i := range r.Columns {
		if r.Columns[i].Name == name {
			return i
		}
	}
	return absent
}

func (d *Decoder) missing(r *relation, field, column string) error {
	e := &RelationError{Table: r.Table(), Field: field, Column: column, CommitLSN: d.tx.commitLSN}
	for _, c := range r.Columns {
		e.Columns = append(e.Columns, c.Name)
	}
	return e
}

// reportGone tells of fields whose column the new layout lacks. Those that must exist
// fail at the next row; this is for the others.
func (d *Decoder) reportGone(old, now *relation) {
	if d.config.ColumnGone == nil || old.layout == nil {
		return
	}
	for i, at := range old.layout.fields {
		if at == absent {
			continue
		}
		column := d.mapping.Column(Field(i))
		if now.find(column) == absent && !d.mustExist(Field(i)) {
			d.config.ColumnGone(now.Table(), fieldNames[i], column)
		}
	}
}

// mustExist reports whether rows without the field's column are an error.
func (d *Decoder) mustExist(f Field) bool {
	return d.mapping.Explicit(f) || slices.Contains(d.config.Required, f)
}
