package cli

import (
	"maps"
	"slices"
)

// nearestHint suggests the known name that looks most like the wrong one.
func nearestHint[V any](wrong string, known map[string]V, prefix string) string {
	if name := nearest(wrong, slices.Sorted(maps.Keys(known))); name != "" {
		return "did you mean " + prefix + name + "?"
	}
	return "outbox-cdc --help lists the commands, outbox-cdc COMMAND --help the flags (keys have the same names)"
}

// nearest returns the candidate within a few edits of wrong, or "".
func nearest(wrong string, candidates []string) string {
	best, bestDistance := "", len(wrong)/3+1
	for _, candidate := range candidates {
		if d := editDistance(wrong, candidate); d <= bestDistance && (best == "" || d < bestDistance) {
			best, bestDistance = candidate, d
		}
	}
	return best
}

// editDistance counts the letters to add, drop or change to make a into b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
