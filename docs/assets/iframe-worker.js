/* Search in pages that are opened from a disk: browsers start no worker there, so its script runs in a hidden frame. */
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.ready = new Promise((resolve) => {
        window.addEventListener("message", (event) => {
          if (event.source !== frame.contentWindow) return;
          if (event.data === "worker is loaded") resolve(frame.contentWindow);
          else this.dispatchEvent(new MessageEvent("message", { data: event.data }));
        });
      });
      const load = () => {
        frame.srcdoc = `<script>
          window.postMessage = (data) => parent.postMessage(data, "*");
          window.importScripts = async (...urls) => {
            for (const url of urls)
              await new Promise((done) => {
                const script = document.createElement("script");
                script.src = url;
                script.onload = script.onerror = done;
                document.head.append(script);
              });
          };
        <\/script><script src="${url}"><\/script><script>parent.postMessage("worker is loaded", "*");<\/script>`;
        document.body.append(frame);
      };
      if (document.body) load();
      else document.addEventListener("DOMContentLoaded", load);
    }
    postMessage(data) {
      this.ready.then((frame) => frame.dispatchEvent(new frame.MessageEvent("message", { data })));
    }
    terminate() {}
  };
