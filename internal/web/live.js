"use strict";
(function () {
  const every = 2000;
  const patience = 5000;
  const stale = document.getElementById("stale");
  let answered = Date.now();

  async function refresh() {
    const stop = new AbortController();
    const timer = setTimeout(function () { stop.abort(); }, patience);
    try {
      const answer = await fetch(location.href, { cache: "no-store", signal: stop.signal });
      const next = new DOMParser().parseFromString(await answer.text(), "text/html");
      const main = next.querySelector("main");
      if (!main) { throw new Error("no page"); }
      document.querySelector("main").replaceWith(document.adoptNode(main));
      document.title = next.title;
      answered = Date.now();
      stale.textContent = "";
    } catch (e) {
      stale.textContent = "no answer for " + Math.round((Date.now() - answered) / 1000) + " s";
      document.title = "no answer - outbox-cdc";
    } finally {
      clearTimeout(timer);
    }
    setTimeout(refresh, every);
  }
  setTimeout(refresh, every);
})();
