// Pure modules of the console, run by Node from their source: node --test tests/console/modules.test.mjs
import assert from "node:assert/strict";
import { test } from "node:test";

const lib = new URL("../../app/console/web/src/lib/", import.meta.url);
const { csv } = await import(new URL("csv.ts", lib));
const { wordDiff } = await import(new URL("diff.ts", lib));
const { bytes, seconds, weights } = await import(new URL("format.ts", lib));
const { safeLink, to } = await import(new URL("links.ts", lib));
const { ownPath, setOwnTenant } = await import(new URL("own-paths.ts", lib));
const { serverEvents } = await import(new URL("sse.ts", lib));
const { usageSeries } = await import(new URL("usage-series.ts", lib));

test("a cell that a spreadsheet would run is text", () => {
  for (const cell of ["=1+1", "+1", "-1", "@SUM(1)", "\tx", "\rx"]) {
    assert.equal(csv([[cell]]).replaceAll('"', "").startsWith("'"), true, cell);
  }
  assert.equal(csv([["a,b", 'say "x"', -1, null]]), '"a,b","say ""x""",-1,\r\n');
});

test("a difference gives back both texts", () => {
  for (const [before, after] of [["a b c", "a x c"], ["", "a"], ["a", ""], ["a  b", "b a"], ["same", "same"]]) {
    const parts = wordDiff(before, after);
    const without = (kind) => parts.filter((part) => part.kind !== kind).map((part) => part.text).join("");
    assert.equal(without("added"), before);
    assert.equal(without("removed"), after);
  }
  assert.deepEqual(wordDiff("a b", "a b"), [{ kind: "same", text: "a b" }]);
  assert.equal(wordDiff("a ".repeat(2_000), "a"), null);
});

test("only http and https become links", () => {
  assert.equal(safeLink("https://example.com/run"), "https://example.com/run");
  for (const text of ["javascript:alert(1)", "data:text/html,x", " https://a", "//a", "ftp://a", "https://"]) {
    assert.equal(safeLink(text), null, text);
  }
  assert.equal(to.adapter("a/b", "<c>"), "/t/a%2Fb/adapters/%3Cc%3E");
});

test("a tenant's own key asks for nothing under /admin", () => {
  assert.equal(ownPath("/admin/tenants/acme/adapters"), "/admin/tenants/acme/adapters");
  setOwnTenant("acme");
  assert.equal(ownPath("/admin/tenants/acme/adapters/a%2Fb"), "/v1/adapters/a%2Fb");
  for (const path of ["/admin/tenants/acme", "/admin/tenants/acmes/adapters", "/admin/tenants", "/v1/usage"]) {
    assert.equal(ownPath(path), path);
  }
  setOwnTenant(null);
  assert.equal(ownPath("/admin/tenants/acme/adapters"), "/admin/tenants/acme/adapters");
});

test("events arrive whole, however the bytes are cut", async () => {
  const text = 'id: 1\nevent: a\ndata: {"x": "ä"}\n\n: comment\n\ndata: one\r\ndata: two\r\n\r\ndata: cut';
  const whole = new TextEncoder().encode(text);
  for (let size = 1; size < whole.length; size += 1) {
    const pieces = Array.from({ length: Math.ceil(whole.length / size) }, (_, i) => whole.slice(i * size, (i + 1) * size));
    const found = [];
    for await (const event of serverEvents(ReadableStream.from(pieces))) found.push(event);
    assert.deepEqual(found, [
      { id: "1", type: "a", data: '{"x": "ä"}' },
      { id: null, type: "message", data: "one\ntwo" },
    ]);
  }
});

test("steps without a request have no point", () => {
  const [start, end] = ["2026-11-01T00:00:00Z", "2026-11-01T03:00:00Z"];
  const point = { start: "2026-11-01T01:00:00Z", requests: 3 };
  const { times, points } = usageSeries([point], start, end, 3600);
  assert.deepEqual(times, [0, 1, 2].map((hour) => Date.parse(start) / 1000 + hour * 3600));
  assert.deepEqual(points, [undefined, point, undefined]);
});

test("figures have units", () => {
  assert.equal(bytes(0), "0 B");
  assert.equal(bytes(1536), "1.5 KiB");
  assert.equal(bytes(2 ** 50), "1,024 TiB");
  assert.equal(seconds(0.25), "250 ms");
  assert.equal(seconds(7200), "2 h");
  assert.equal(seconds(null), "–");
  assert.equal(weights({ 3: 1 }), "version 3");
  assert.equal(weights({ 1: 95, 2: 5 }), "version 1: 95%, version 2: 5%");
});
