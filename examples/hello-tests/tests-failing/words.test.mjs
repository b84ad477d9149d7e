import assert from "node:assert/strict";
import { test } from "node:test";
import { count } from "../hello/words.mjs";

test("fails on purpose: case counts", () => {
  assert.deepEqual(count("Be be"), [["Be", 1], ["be", 1]]);
});
