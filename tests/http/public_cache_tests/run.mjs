// Runs the public HTTP cache tests (https://cache-tests.fyi) against a cache, and prints one line for each test:
// its id, its kind, and its result.
//
// node run.mjs <folder of the package http-cache-tests> <URL of the cache>
import { createRequire } from 'node:module'
import path from 'node:path'
import { pathToFileURL } from 'node:url'

const [folder, base] = process.argv.slice(2)
const from = file => import(pathToFileURL(path.join(folder, file)))
const { runTests, getResults } = await from('client/runner.mjs')
const { default: suites } = await from('tests/index.mjs')
const { default: surrogate } = await from('tests/surrogate-control.mjs')
const nodeFetch = createRequire(path.join(folder, 'cli.mjs'))('node-fetch')
// Without Accept-Encoding: a client that accepts a coding gets no ranges (docs/design/0001-outer-layers.md).
const fetch = (url, init) => nodeFetch(url, { ...init, compress: false })

suites.push(surrogate)
await runTests(suites, fetch, false, base)
const results = getResults()
for (const test of suites.flatMap(suite => suite.tests)) {
  const result = results[test.id]
  if (result === undefined) continue
  // "Setup": the test could not be carried out, mostly as the cache does not do what an optional feature needs.
  const [kind, message] = result === true ? ['pass', ''] : [result[0] === 'Setup' ? 'setup' : 'fail', result[1]]
  console.log([test.id, test.kind ?? 'required', kind, message].join('\t').trimEnd())
}
