// Reads a formula a line (JSON), and answers with a line: its HTML, or why it has none. Ends when its input ends.
const katex = require(process.argv[2]);
const lines = require("node:readline").createInterface({ input: process.stdin });

lines.on("line", (line) => {
  const { latex, displayMode } = JSON.parse(line);
  let answer;
  try {
    answer = { html: katex.renderToString(latex, { displayMode, throwOnError: true }) };
  } catch (error) {
    answer = { error: error.message };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
});
