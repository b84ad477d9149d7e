import assert from "node:assert/strict";
import { test } from "node:test";
import { count } from "../hello/words.mjs";

test("the most frequent comes first", () => {
  assert.deepEqual(count("to be, or not to BE"), [["be", 2], ["to", 2], ["not", 1], ["or", 1]]);
});

test("no text has no words", () => {
  assert.deepEqual(count(" ... "), []);
});
