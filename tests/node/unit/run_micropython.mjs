// Runs a Python program in MicroPython's WebAssembly port: node run_micropython.mjs PORT_FOLDER PROGRAM [MODULE.py …]
// The modules are put where the program can import them; what it prints goes to stdout. A line "# collect" ends a part:
// this port collects garbage only between parts.
import { readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, program, ...modules] = process.argv.slice(2);
const { loadMicroPython } = await import(pathToFileURL(join(folder, "micropython.mjs")).href);
const python = await loadMicroPython({ heapsize: 1024 * 1024, linebuffer: true, stdout: (line) => console.log(line) });
for (const module of modules) {
  python.FS.writeFile("/" + basename(module), readFileSync(module));
}
python.runPython('import sys\nsys.path.append("/")');
for (const part of readFileSync(program, "utf8").split("# collect\n")) {
  python.runPython(part + "\nimport gc\ngc.collect()\n");
}
