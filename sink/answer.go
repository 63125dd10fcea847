package sink

import (
	"encoding/json"
	"strconv"
	"strings"
)

// answerKind says what the server said to one of our publishes.
type answerKind uint8

const (
	// answerForeign is not the server's: a subscriber of the subject replied.
	answerForeign answerKind = iota
	// answerStored acknowledges: count messages of the batch (or the one message of
	// a plain publish) are stored.
	answerStored
	// answerFlow tells inside an open batch that count messages are stored.
	answerFlow
	// answerGap says that a message of the batch did not arrive; the batch ends.
	answerGap
	// answerRefused refuses one message; code says why.
	answerRefused
	// answerNobody says that no stream listens on the subject.
	answerNobody
)

// answer is one parsed reply.
type answer struct {
	kind      answerKind
	round     uint64 // which batch (or round of plain publishes) it belongs to
	seq       uint64 // which message of the round the reply subject belongs to, from 1
	count     uint64
	streamSeq uint64
	stream    string
	duplicate bool
	code      int
}

// wireAnswer is the union of what JetStream replies. Source: ADR-50 and the
// server's PubAck, BatchFlowAck, BatchFlowGap and BatchFlowErr.
type wireAnswer struct {
	Type      string `json:"type"`
	Seq       uint64 `json:"seq"`
	Stream    string `json:"stream"`
	Batch     string `json:"batch"`
	Count     uint64 `json:"count"`
	Duplicate bool   `json:"duplicate"`
	Error     *struct {
		Code    int `json:"code"`
		ErrCode int `json:"err_code"`
	} `json:"error"`
}

// The operations of a fast batch.
const (
	opStart  = 0
	opAppend = 1
	opCommit = 2 // store this message and end the batch
	opEnd    = 3 // end the batch without a message
)

const fastSuffix = ".$FI"

// appendBatchReply writes the reply subject that makes a publish part of a fast
// batch: <inbox>.<batch id>.<flow>.fail.<sequence>.<operation>.$FI
func appendBatchReply(b []byte, inbox, nonce string, round uint64, flow int, seq uint64, op byte) []byte {
	b = append(b, inbox...)
	b = append(b, '.')
	b = appendBatchID(b, nonce, round)
	b = append(b, '.')
	b = strconv.AppendInt(b, int64(flow), 10)
	b = append(b, ".fail."...)
	b = strconv.AppendUint(b, seq, 10)
	b = append(b, '.', '0'+op)
	return append(b, fastSuffix...)
}

// appendPlainReply writes the reply subject of a plain publish:
// <inbox>.<batch id>.p.<sequence>
func appendPlainReply(b []byte, inbox, nonce string, round, seq uint64) []byte {
	b = append(b, inbox...)
	b = append(b, '.')
	b = appendBatchID(b, nonce, round)
	b = append(b, ".p."...)
	return strconv.AppendUint(b, seq, 10)
}

func appendBatchID(b []byte, nonce string, round uint64) []byte {
	b = append(b, nonce...)
	b = append(b, '-')
	return strconv.AppendUint(b, round, 36)
}

// parseAnswer reads a reply. ok is false when its subject is none of ours.
func parseAnswer(subject, inbox, nonce string, status string, data []byte) (a answer, ok bool) {
	rest, ok := strings.CutPrefix(subject, inbox+".")
	if !ok {
		return answer{}, false
	}
	tokens := strings.Split(rest, ".")
	seqAt := 2
	if len(tokens) == 6 { // id, flow, gap mode, sequence, operation, $FI
		seqAt = 3
	} else if len(tokens) != 3 {
		return answer{}, false
	}
	round, ok := strings.CutPrefix(tokens[0], nonce+"-")
	if !ok {
		return answer{}, false
	}
	var err error
	if a.round, err = strconv.ParseUint(round, 36, 64); err != nil {
		return answer{}, false
	}
	if a.seq, err = strconv.ParseUint(tokens[seqAt], 10, 64); err != nil {
		return answer{}, false
	}
	if status == "503" && len(data) == 0 {
		a.kind = answerNobody
		return a, true
	}
	var w wireAnswer
	if json.Unmarshal(data, &w) != nil {
		return a, true // foreign
	}
	a.stream, a.duplicate = w.Stream, w.Duplicate
	fast := seqAt == 3
	switch {
	case w.Error != nil && w.Error.ErrCode != 0:
		a.kind, a.code = answerRefused, w.Error.ErrCode
		if w.Type == "err" {
			a.seq = w.Seq
		}
	case fast && w.Type == "ack":
		a.kind, a.count = answerFlow, w.Seq
	case fast && w.Type == "gap":
		a.kind = answerGap
	case fast && w.Batch != "":
		if w.Batch != tokens[0] {
			return a, true // foreign
		}
		a.kind, a.count, a.streamSeq = answerStored, w.Count, w.Seq
	case !fast && w.Stream != "" && w.Seq > 0:
		a.kind, a.count, a.streamSeq = answerStored, 1, w.Seq
	}
	return a, true
}
