// Package web serves health, metrics and the live page of one forwarder over HTTP.
//
// It owns the listener and the form of the answers, and knows nothing of what it
// shows: the forwarder hands in a Source. It promises that every text is escaped
// and has gone through the caller's Redact, that nothing is loaded from elsewhere,
// and that no request can hold a goroutine for longer than a bounded time. It only
// reads: no request changes anything.
package web
