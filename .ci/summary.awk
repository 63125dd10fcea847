# Shortens `go test -v ./...`: one line for a package that passes, everything for one
# that fails, and a count at the end. A skipped test counts as a failure: a missing
# server must not look like a green run.
{ held[n++] = $0 }
/^--- PASS/ { passed++ }
/^--- FAIL/ { failed++; failedHere = 1 }
/^[ ]*--- SKIP/ { skipped++; print "skipped, which fails the run: " $3 }
/^(ok  |\?   )\t/ || /^\t[^ \t]+\t\tcoverage: 0.0% of statements$/ { print; fflush(); n = 0; failedHere = 0 }
/^FAIL\t/ {
  for (i = 0; i < n; i++) print held[i]
  fflush()
  if (!failedHere) failed++ # did not build, timed out or ended before its end
  n = 0
  failedHere = 0
}
END {
  for (i = 0; i < n; i++) if (held[i] != "FAIL") print held[i]
  printf "tests: %d passed, %d failed, %d skipped\n", passed, failed, skipped
  exit failed + skipped > 0 || passed == 0
}
