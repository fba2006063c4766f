import { useMutation } from "@tanstack/react-query";
import { type FormEvent, useRef, useState } from "react";
import { useParams } from "wouter";
import { Command } from "../../../components/command";
import { Checkbox, Field, TextArea } from "../../../components/field";
import { Page } from "../../../components/page";
import { useParam } from "../../../lib/params";
import { useMe } from "../../../session";
import { DropZone } from "./drop-zone";
import { Outcome } from "./outcome";
import { type Progress, Stages } from "./stages";
import { type UploadRequest, publish } from "./run";
import type { Selection } from "./selection";

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
  const { server } = useMe();
  const [selection, setSelection] = useState<Selection | null>(null);
  const [adapter, setAdapter] = useState(given);
  const [alias, setAlias] = useState("default");
  const [labels, setLabels] = useState("");
  const [run, setRun] = useState("");
  const [card, setCard] = useState("");
  const [allowNoEffect, setAllowNoEffect] = useState(false);
  const [progress, setProgress] = useState<Progress>({ stage: "checking", sent: 0, total: 0 });
  const abort = useRef(new AbortController());
  const upload = useMutation({
    mutationFn: (request: UploadRequest) => {
      abort.current = new AbortController();
      setProgress({ stage: "checking", sent: 0, total: 0 });
      return publish(request, {
        signal: abort.current.signal,
        onStage: (stage) => setProgress((before) => ({ ...before, stage })),
        onProgress: (sent, total) => setProgress((before) => ({ ...before, sent, total })),
      });
    },
  });
  const parsedLabels = parseLabels(labels);

  function onSubmit(event: FormEvent) {
    event.preventDefault();
    if (selection === null || parsedLabels === null) return;
    const options = { alias: alias.trim() || null, labels: parsedLabels, card, training_run: run.trim() || null, allow_no_effect: allowNoEffect };
    upload.mutate({ tenant, adapter: adapter.trim(), selection, options, caps: server.uploads });
  }

  return (
    <>
      <form onSubmit={onSubmit} aria-label="Upload">
        <DropZone selection={selection} onSelect={setSelection} />
        <div className="fields">
          <Field label="Adapter" required value={adapter} onValue={setAdapter} autoComplete="off" hint="A new name makes a new adapter." />
          <Field label="Alias that moves" value={alias} onValue={setAlias} autoComplete="off" hint="Empty: no alias moves, as for a canary." />
          <Field label="Labels" value={labels} onValue={setLabels} placeholder="team=pricing, data=2026-11" aria-invalid={parsedLabels === null} />
          <Field label="Link to the training run" value={run} onValue={setRun} type="url" placeholder="https://…" />
        </div>
        <TextArea label="Card" value={card} onValue={setCard} />
        <Checkbox label="Also accept an adapter that changes nothing" checked={allowNoEffect} onValue={setAllowNoEffect} />
        <div className="row">
          <button type="submit" className="primary" disabled={selection === null || adapter.trim() === "" || parsedLabels === null || upload.isPending}>
            {upload.isPending ? "Uploading…" : "Upload"}
          </button>
          {upload.isPending && (
            <button type="button" onClick={() => abort.current.abort(new Error("You stopped the upload."))}>
              Stop
            </button>
          )}
        </div>
      </form>
      {!upload.isIdle && <Stages progress={progress} outcome={upload.status} />}
      <Outcome tenant={tenant} version={upload.data} error={upload.error} />
      <section aria-label="Command line">
        <p className="quiet">The command line does the same, and goes on after an interruption:</p>
        <Command line={`tenora adapters push FOLDER --tenant ${tenant} --adapter ${adapter.trim() || "NAME"}`} />
      </section>
    </>
  );
}

/** Parse `name=value, name=value`. Null: the text is not of that form. */
function parseLabels(text: string): Record<string, string> | null {
  if (text.trim() === "") return {};
  const pairs = text.split(",").map((pair) => pair.split(/=(.*)/s).slice(0, 2).map((part) => part.trim()));
  if (pairs.some((pair) => pair.length !== 2 || pair.includes(""))) return null;
  return Object.fromEntries(pairs) as Record<string, string>;
}
