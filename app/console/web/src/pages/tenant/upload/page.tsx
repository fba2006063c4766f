import { useMutation } from "@tanstack/react-query";
import { type FormEvent, useRef, useState } from "react";
import { useParams } from "wouter";
import { Command } from "../../../components/command";
import { Checkbox } from "../../../components/field";
import { Page } from "../../../components/page";
import { useParam } from "../../../lib/params";
import { useMe } from "../../../session";
import { DropZone } from "./drop-zone";
import { UploadFields, useUploadOptions } from "./options";
import { Outcome } from "./outcome";
import { Refusals } from "./refusals";
import { type UploadRequest, publish } from "./run";
import type { Selection } from "./selection";
import { type Progress, Stages } from "./stages";

const START: Progress = { stage: "checking", sent: 0, total: 0 };

/** From this size on, an upload goes in parts unless the user chooses otherwise. */
const PARTS_FROM_BYTES = 512 * 1024 * 1024;

export function Upload() {
  const tenant = useParam("tenant");
  const given = useParams().adapter ?? "";
  return (
    <Page title="Upload an adapter" scopes={["adapters:write"]}>
      <UploadForm tenant={tenant} given={given} />
    </Page>
  );
}

function UploadForm({ tenant, given }: { tenant: string; given: string }) {
  const { server, can } = useMe();
  const [selection, setSelection] = useState<Selection | null>(null);
  const [adapter, setAdapter] = useState(given);
  const [wantsParts, setWantsParts] = useState<boolean | null>(null);
  const { options, texts } = useUploadOptions();
  const { upload, progress, stop } = useUpload();
  const inParts = wantsParts ?? (selection !== null && sizeOf(selection) >= PARTS_FROM_BYTES);
  const name = adapter.trim();

  function onSubmit(event: FormEvent) {
    event.preventDefault();
    if (selection === null || options === null) return;
    upload.mutate({ tenant, adapter: name, selection, options, caps: server.uploads, inParts });
  }

  return (
    <>
      <form onSubmit={onSubmit} aria-label="Upload">
        <DropZone selection={selection} onSelect={setSelection} />
        <UploadFields adapter={adapter} onAdapter={setAdapter} texts={texts} />
        <Checkbox
          label="Send in parts: a second upload of the same files goes on after an interruption"
          checked={inParts}
          onValue={setWantsParts}
        />
        <div className="row">
          <button
            type="submit"
            className="primary"
            disabled={!selection || !options || name === "" || upload.isPending}
          >
            {upload.isPending ? "Uploading…" : "Upload"}
          </button>
          {upload.isPending && (
            <button type="button" onClick={stop}>
              Stop
            </button>
          )}
        </div>
      </form>
      {!upload.isIdle && <Stages progress={progress} outcome={upload.status} />}
      <Outcome tenant={tenant} version={upload.data} error={upload.error} />
      {can("adapters:read") && <Refusals tenant={tenant} />}
      <section aria-label="Command line">
        <p className="quiet">The command line does the same, and goes on after an interruption:</p>
        <Command line={`tenora adapters push FOLDER --tenant ${tenant} --adapter ${name || "NAME"}`} />
      </section>
    </>
  );
}

/** Run an upload, and keep its progress. */
function useUpload() {
  const [progress, setProgress] = useState(START);
  const abort = useRef(new AbortController());
  const upload = useMutation({
    mutationFn: (request: UploadRequest) => {
      abort.current = new AbortController();
      setProgress(START);
      return publish(request, {
        signal: abort.current.signal,
        onStage: (stage) => setProgress((before) => ({ ...before, stage })),
        onProgress: (sent, total) => setProgress((before) => ({ ...before, sent, total })),
      });
    },
  });
  return { upload, progress, stop: () => abort.current.abort(new Error("You stopped the upload.")) };
}

function sizeOf(selection: Selection): number {
  return selection.kind === "archive" ? selection.archive.size : selection.weights.size;
}
