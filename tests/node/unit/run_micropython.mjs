// Runs a Python program in MicroPython's WebAssembly port: node run_micropython.mjs PORT_FOLDER PROGRAM [MODULE.py …]
// The modules are put where the program can import them; what it prints goes to stdout. A line "# collect" ends a part:
// this port collects garbage only between parts. A program that imports `descriptor` reads and writes the connection that
// the environment names by its number and that does not block, in hexadecimal digits.
import { readFileSync, readSync, writeSync } from "node:fs";
import { basename, join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, program, ...modules] = process.argv.slice(2);
const { loadMicroPython } = await import(pathToFileURL(join(folder, "micropython.mjs")).href);
const python = await loadMicroPython({ heapsize: 1024 * 1024, linebuffer: true, stdout: (line) => console.log(line) });
const connection = Number(process.env.DESCRIPTOR);
const pause = () => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2);
const attempt = (call) => {
  try {
    return call();
  } catch (error) {
    if (error.code !== "EAGAIN") throw error;
    return null;
  }
};
python.registerJsModule("descriptor", {
  read(size, waits) {
    const found = Buffer.alloc(size);
    let at = 0;
    while (at < size) {
      const more = attempt(() => readSync(connection, found, at, size - at));
      if (more === 0) break;
      if (more === null && !waits && at === 0) return "nothing yet";
      if (more === null) pause();
      at += more ?? 0;
    }
    return found.subarray(0, at).toString("hex");
  },
  write(text) {
    const data = Buffer.from(text, "hex");
    let at = 0;
    while (at < data.length) {
      const more = attempt(() => writeSync(connection, data, at));
      if (more === null) pause();
      at += more ?? 0;
    }
  },
});
for (const module of modules) {
  python.FS.writeFile("/" + basename(module), readFileSync(module));
}
python.runPython('import sys\nsys.path.append("/")');
for (const part of readFileSync(program, "utf8").split("# collect\n")) {
  python.runPython(part + "\nimport gc\ngc.collect()\n");
}
