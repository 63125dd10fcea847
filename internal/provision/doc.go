// Package provision makes what the forwarder needs and judges what is there: tables,
// publication, stream and slot, in that order, since a publication made after its slot
// breaks the slot.
//
// It owns the comparison of what is with what should be, the statements that mend a
// difference, the least-privilege roles, and the status document. It promises never to
// change or drop a thing that exists and differs, and to be safe to repeat. It never
// streams, and it starts no goroutine.
package provision
