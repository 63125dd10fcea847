package decode

// insert reads an Insert message: relation OID, 'N', and the row.
func (d *Decoder) insert(c *cursor) (Change, error) {
	oid := c.uint32()
	d.needTransaction(c)
	r := d.lookup(c, oid)
	if c.uint8() != 'N' {
		c.fail(CauseMalformed, "no new row")
	}
	if c.err != nil {
		return Change{}, c.err
	}
	unchanged := d.tuple(c, r)
	if err := c.end(); err != nil {
		return Change{}, err
	}
	if ok, err := d.accept(r); err != nil {
		return Change{}, err
	} else if !ok {
		d.skipped++
		return Change{}, nil
	}
	if r.layout == nil {
		if err := d.makeLayout(r); err != nil {
			return Change{}, err
		}
	}
	e := d.event(c.msg, r)
	if unchanged != absent && r.layout.used[unchanged] {
		e.Malformed = &ValueError{Field: r.Columns[unchanged].Name, Reason: "the value was not sent (unchanged TOAST)"}
	}
	return d.emit(e), nil
}

// lookup returns the relation with that OID. The server describes a relation before
// its first row, so an unknown one is an error.
func (d *Decoder) lookup(c *cursor, oid uint32) *relation {
	if d.last != nil && d.last.OID == oid {
		return d.last
	}
	r := d.relations[oid]
	if r == nil {
		c.fail(CauseMalformed, "row of relation %d, which was not described", oid)
		return nil
	}
	d.last = r
	return r
}

// tuple reads a row of r into d.row: where each value stands in the message. It returns
// the first column whose value was not sent, or absent.
func (d *Decoder) tuple(c *cursor, r *relation) (unchanged int) {
	unchanged = absent
	n := int(c.uint16())
	if c.err == nil && n != len(r.Columns) {
		c.fail(CauseMalformed, "a row of %d columns of relation %s, which has %d", n, r.Table(), len(r.Columns))
	}
	d.row = d.row[:0]
	for i := 0; i < n && c.err == nil; i++ {
		s := span{len: null}
		switch kind := c.uint8(); kind {
		case 'n':
		case 't':
			length := c.uint32()
			s = span{off: int32(c.off), len: int32(length)}
			c.take(int(length)) // fails unless both fit: see messageMax
		case 'u':
			if unchanged == absent {
				unchanged = i
			}
		case 'b':
			c.fail(CauseBinary, "a value in binary form")
		default:
			c.fail(CauseMalformed, "a value of unknown form %q", rune(kind))
		}
		d.row = append(d.row, s)
	}
	return unchanged
}

// event copies the mapped values of d.row out of the message, each column once.
func (d *Decoder) event(msg []byte, r *relation) *Event {
	l := r.layout
	size := 0
	for i, used := range l.used {
		if used && d.row[i].len != null {
			size += int(d.row[i].len)
		}
	}
	e := newEvent(len(l.extras))
	e.Table, e.kinds = r.Table(), &l.kinds
	buf := make([]byte, 0, size)
	for i, used := range l.used {
		s := &d.row[i]
		if !used || s.len == null {
			continue
		}
		start := len(buf)
		buf = append(buf, msg[s.off:s.off+s.len]...)
		s.off = int32(start)
	}
	e.buf = buf
	for f, at := range l.fields {
		e.fields[f] = d.at(at)
	}
	for i, at := range l.extras {
		e.extras[i] = d.at(at)
	}
	return e
}

// at returns the span of a column of the current row.
func (d *Decoder) at(column int) span {
	if column == absent {
		return span{len: null}
	}
	return d.row[column]
}

// ignore reads an Update, Delete or Truncate message to its end and counts it. The
// outbox is a log: only what is inserted is an event.
func (d *Decoder) ignore(c *cursor) error {
	d.needTransaction(c)
	if c.msg[0] == 'T' {
		n := int(c.uint32())
		c.uint8() // options
		c.take(4 * n)
	} else {
		d.rowChange(c)
	}
	if err := c.end(); err != nil {
		return err
	}
	d.ignored++
	return nil
}

// rowChange reads the body of an Update (an old row or key at will, then the new row) or
// of a Delete (an old row or key).
func (d *Decoder) rowChange(c *cursor) {
	r := d.lookup(c, c.uint32())
	form := c.uint8()
	if c.err != nil {
		return
	}
	if form == 'K' || form == 'O' {
		d.tuple(c, r)
		if c.msg[0] == 'D' {
			return
		}
		form = c.uint8()
	}
	if c.msg[0] == 'D' || form != 'N' {
		c.fail(CauseMalformed, "no row where one is wanted")
		return
	}
	d.tuple(c, r)
}
