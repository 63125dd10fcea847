package fault

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// provoked names, for each row of the two tables, the test in which a real server gives
// its code, and which looks at what then becomes of forwarder, events and slot.
var provoked = map[string]string{
	"08P01": "internal/e2e TestProtocolThatIsMangledOnTheWayIsTakenForAPooler",
	"0A000": "internal/e2e TestCommandsSayWhyPostgresMakesNothing",
	"22023": "internal/e2e TestPostgresThatRefusesTheConnectionIsAnExitWithTheServersReason",
	"25006": "internal/e2e TestLetterThatPostgresRefusesWaitsOrStopsByTheServersCode",
	"25P03": "internal/e2e TestAForwarderThatIsFrozenWhileItStoresALetterDoesNotKeepItsSuccessorFromDoingSo",
	"28":    "internal/e2e TestPostgresThatRefusesTheConnectionIsAnExitWithTheServersReason",
	"3D000": "internal/e2e TestPostgresThatRefusesTheConnectionIsAnExitWithTheServersReason",
	"40":    "internal/e2e TestDeadlockOfTheSetUpBeforeTheStartIsTriedAgain",
	"42501": "internal/e2e TestPostgresThatRefusesTheConnectionIsAnExitWithTheServersReason",
	"42704": "internal/e2e TestPublicationDroppedWhileRunningStopsTheForwarderBeforeTheRow",
	"42P01": "internal/e2e TestLetterThatPostgresRefusesWaitsOrStopsByTheServersCode",
	"53":    "internal/e2e TestCommandsSayWhyPostgresMakesNothing",
	"53300": "internal/e2e TestPostgresThatIsShortOfSomethingIsWaitedForFromTheStart",
	"55000": "internal/e2e TestSlotThatIsLostWhileRunningStopsTheForwarderAndIsNotWorkedOnAgain",
	"55006": "internal/e2e TestStandbyNamesTheHolderAndTakesOverWhenTheLeaderIsKilled",
	"55P03": "internal/e2e TestPostgresThatIsShortOfSomethingIsWaitedForFromTheStart",
	"57014": "internal/e2e TestPostgresThatEndsSessionsIsConnectedToAgain",
	"57P01": "internal/e2e TestPostgresThatEndsSessionsIsConnectedToAgain",
	"57P03": "internal/e2e TestPostgresThatEndsSessionsIsConnectedToAgain",
	"57P05": "internal/e2e TestPostgresThatEndsSessionsIsConnectedToAgain",
	"58P01": "internal/e2e TestWALThatCannotBeReadStopsTheForwarderAndNothingIsPassedOver",
	"XX000": "internal/e2e TestWALThatCannotBeReadStopsTheForwarderAndNothingIsPassedOver",
	"XX001": "internal/e2e TestWALThatCannotBeReadStopsTheForwarderAndNothingIsPassedOver",

	"10002": "internal/e2e TestWhereverStorageIsUsedUpEventsWaitInOrder",
	"10005": "internal/e2e TestClusterThatFallsApartIsWaitedForAndNothingIsLostOrStoredTwice",
	"10008": "internal/e2e TestClusterThatFallsApartIsWaitedForAndNothingIsLostOrStoredTwice",
	"10023": "internal/e2e TestWhereverStorageIsUsedUpEventsWaitInOrder",
	"10027": "internal/e2e TestStreamThatTheServerWillNotMakeIsAnExitThatSaysWhy",
	"10039": "internal/e2e TestJetStreamThatIsOffIsAnExitAtTheStartAndWaitedForWhileRunning",
	"10047": "internal/e2e TestStreamThatTheServerWillNotMakeIsAnExitThatSaysWhy",
	"10052": "internal/e2e TestStreamThatTheServerWillNotMakeIsAnExitThatSaysWhy",
	"10054": "internal/e2e TestLimitOfTheStreamThatTheForwarderDoesNotKnowIsFoundWithTheEvent",
	"10058": "sink TestEachDifferenceOfAStreamIsNamed",
	"10059": "internal/e2e TestStreamMissingAtTheStartIsWaitedForWithAHint",
	"10060": "internal/e2e TestStreamThatCeasesToTakeMessagesStopsTheRunningForwarder",
	"10065": "internal/e2e TestStreamThatTheServerWillNotMakeIsAnExitThatSaysWhy",
	"10071": "internal/e2e TestForeignWriterAtFullLoadCausesNeitherLossNorDisorder",
	"10074": "internal/e2e TestStreamThatTheServerWillNotMakeIsAnExitThatSaysWhy",
	"10077": "internal/e2e TestWhereverStorageIsUsedUpEventsWaitInOrder",
	"10109": "internal/e2e TestStreamThatCeasesToTakeMessagesStopsTheRunningForwarder",
	"10113": "internal/e2e TestStreamThatTheServerWillNotMakeIsAnExitThatSaysWhy",
	"10118": "internal/e2e TestClusterThatFallsApartIsWaitedForAndNothingIsLostOrStoredTwice",
	"10122": "internal/e2e TestStreamThatTheServerWillNotMakeIsAnExitThatSaysWhy",
	"10158": "internal/e2e TestClusterThatFallsApartIsWaitedForAndNothingIsLostOrStoredTwice",
	"10167": "internal/e2e TestQueueOfTheStreamThatOverflowsCostsNeitherEventsNorOrder",
	"10169": "internal/e2e TestStreamThatCeasesToTakeMessagesStopsTheRunningForwarder",
	"10205": "internal/e2e TestBatchesThatAreForbiddenAndAllowedAgainUnderLoadCostNothing",
	"10208": "internal/e2e TestBatchThatTheServerGaveUpIsBegunAnewWhereItEnded",
	"10211": "internal/e2e TestTooManyOpenBatchesAreWaitedFor",
}

// notProvoked says of the other rows why no server of ours can be made to give them, and
// why they are there nevertheless.
var notProvoked = map[string]string{
	"08":    "PostgreSQL writes it to its log only; poolers say it of the server behind them",
	"57P02": "PostgreSQL says it as a warning and cuts the connection; poolers make an error of it",
	"58":    "an I/O error takes a disk that fails",
	"10097": "headers are measured before they are sent; a server with another measure refuses the event alone",
}

func TestEachRowIsProvokedOnARealServerOrSaysWhyNot(t *testing.T) {
	rows := map[string]bool{}
	for _, row := range append(append([]Row{}, postgresRows...), jetStreamRows...) {
		if rows[row.Code] {
			t.Errorf("%s has two rows", row.Code)
		}
		rows[row.Code] = true
		place, isProvoked := provoked[row.Code]
		why, isNot := notProvoked[row.Code]
		switch {
		case isProvoked == isNot:
			t.Errorf("%s (%s): want either a test that provokes it or a reason why there is none", row.Code, row.Title)
		case isNot && why == "":
			t.Errorf("%s: the reason is empty", row.Code)
		case isProvoked:
			provokes(t, row.Code, place)
		}
	}
	for _, list := range []map[string]string{provoked, notProvoked} {
		for code := range list {
			if !rows[code] {
				t.Errorf("%s has no row", code)
			}
		}
	}
}

// provokes checks that a test is there and looks for the code.
func provokes(t *testing.T, code, place string) {
	t.Helper()
	dir, name, _ := strings.Cut(place, " ")
	pattern := regexp.QuoteMeta(code)
	if len(code) == 2 { // a class
		pattern += `[0-9A-Z]{3}`
	}
	body := testBody(t, dir, name)
	if body == "" {
		t.Errorf("%s: there is no test %s in %s", code, name, dir)
	} else if !regexp.MustCompile(`\b` + pattern + `\b`).MatchString(body) {
		t.Errorf("%s: %s does not look for it", code, name)
	}
}

// testBody returns the text of a test function, or "".
func testBody(t *testing.T, dir, name string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(dir), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "func "+name+"(") {
			continue
		}
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, file, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range parsed.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Name.Name == name {
				return string(text[fset.Position(fn.Pos()).Offset:fset.Position(fn.End()).Offset])
			}
		}
	}
	return ""
}
