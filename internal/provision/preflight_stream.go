package provision

import (
	"fmt"
	"strings"

	"github.com/outbox-cdc/outbox-cdc/sink"
)

// PreflightStream judges a stream before anything is published. A stream that does not exist is
// a finding with code "stream-missing": the forwarder waits for it, the other failures
// are for a person to mend. A stream that listens only on a part of what the template can make is
// a warning, since values decide.
func PreflightStream(status sink.StreamStatus, name, subject string) Findings {
	var fs Findings
	if !status.Exists {
		fs.fail("stream-missing", "outbox-cdc stream create --stream "+name, "stream %s does not exist", name)
		return fs
	}
	wanted := strings.Join(sink.SubjectsFor(subject), ", ")
	have := strings.Join(status.Subjects, ", ")
	switch {
	case status.NoAck:
		fs.fail("stream-no-ack", "make the stream anew without no_ack", "stream %s acknowledges nothing (no_ack), so nothing could be confirmed", name)
	case status.Sealed:
		fs.fail("stream-sealed", "give --stream another name", "stream %s is sealed: it takes nothing any more", name)
	case status.Mirror:
		fs.fail("stream-mirror", "give --stream the stream that it mirrors", "stream %s is a mirror: nothing can be published to it", name)
	}
	switch sink.Coverage(sink.SubjectsFor(subject), status.Subjects) {
	case sink.CoveredNot:
		fs.fail("stream-subjects", fmt.Sprintf("nats stream edit %s --subjects '%s' (and the ones it has), or give --subject or --stream", name, wanted),
			"stream %s does not listen on %s, which --subject %s makes (it listens on %s)", name, wanted, subject, orNothing(have))
	case sink.CoveredPart:
		fs.warn("stream-subjects", fmt.Sprintf("nats stream edit %s --subjects '%s'", name, wanted),
			"stream %s listens on %s: not on all that --subject %s can make", name, have, subject)
	case sink.CoveredWhole:
	}
	if !status.AllowBatched {
		fs.warn("stream-batched", fmt.Sprintf(`put "allow_batched": true into the stream's configuration: nats stream edit %s --config FILE (nats-server 2.14 and newer)`, name),
			"stream %s takes no batches: order is kept only while nobody else publishes into it", name)
	}
	if status.Retention != "limits" {
		fs.warn("stream-retention", "", "stream %s has %s retention: where its messages are gone, events may be delivered again after a crash", name, status.Retention)
	}
	return fs
}
