// Perfetto's trace processor under node: RPC bytes on standard input are answered on standard output.
//
//     node perfetto_engine.js FOLDER
//
// FOLDER holds a build of Perfetto's page: engine_bundle.js, a web worker, and the WebAssembly that it loads. What a
// browser gives such a worker is given to it here: where it stands, requests that read files, and a port.
"use strict";

const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];
const port = { onmessage: null, postMessage: write };
const silent = () => {};

class FileRequest {
  open(method, name) {
    this.name = name;
  }
  send() {
    this.response = fs.readFileSync(path.join(folder, path.basename(this.name)));
  }
}

const worker = {
  location: { href: "http://localhost/engine_bundle.js", search: "" },
  importScripts: silent,
  WorkerGlobalScope: class {},
  XMLHttpRequest: FileRequest,
  console: { log: silent, info: silent, warn: silent, error: console.error },
};
for (const name of ["TextDecoder", "TextEncoder", "performance", "crypto", "setTimeout", "clearTimeout"]) {
  worker[name] = globalThis[name];
}
worker.self = worker;
vm.createContext(worker);
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), worker);
worker.onmessage({ data: port });
const Bytes = vm.runInContext("Uint8Array", worker); // the worker's own, which it looks for
setImmediate(() => {
  process.stdin.on("data", (bytes) => port.onmessage({ data: new Bytes(bytes) }));
  process.stdin.on("end", () => process.exit(0));
});

function write(bytes) {
  for (let sent = 0; sent < bytes.length; ) {
    try {
      sent += fs.writeSync(1, bytes, sent);
    } catch (error) {
      if (error.code !== "EAGAIN") throw error;
    }
  }
}
