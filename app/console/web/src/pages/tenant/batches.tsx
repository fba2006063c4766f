import { useInfiniteQuery, useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { CONSOLE_HEADERS, type Schemas, api, body } from "../../api/client";
import { errorOf } from "../../api/error";
import { ActionDialog } from "../../components/action-dialog";
import { BatchTable } from "../../components/batch-table";
import { Empty } from "../../components/empty";
import { ErrorNotice } from "../../components/error-notice";
import { Field } from "../../components/field";
import { FileField } from "../../components/file-field";
import { Loaded } from "../../components/loaded";
import { Page } from "../../components/page";
import { PlatformBatches } from "../../components/platform-batches";
import { download } from "../../lib/download";
import { useParam } from "../../lib/params";
import { useMe } from "../../session";

type Batch = Schemas["Batch"];

const POLL_MS = 5_000;
const ENDED = new Set<string>(["completed", "failed", "expired", "cancelled"]);

export function Batches() {
  const tenant = useParam("tenant");
  const { isPlatform } = useMe();
  return (
    <Page title="Batches" scopes={["batch"]}>
      {isPlatform ? <PlatformBatches tenant={tenant} /> : <OwnBatches />}
    </Page>
  );
}

function OwnBatches() {
  const { can } = useMe();
  const [creating, setCreating] = useState(false);
  const query = useInfiniteQuery({
    queryKey: ["batches"],
    queryFn: ({ pageParam }) => body(api.GET("/v1/batches", { params: { query: { after: pageParam, limit: 20 } } })),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => (page.has_more ? (page.last_id ?? undefined) : undefined),
    refetchInterval: POLL_MS,
  });
  return (
    <>
      {can("inference") && (
        <p>
          <button type="button" className="primary" onClick={() => setCreating(true)}>
            Create a batch…
          </button>
        </p>
      )}
      <Loaded query={query}>
        {({ pages }) => {
          const batches = pages.flatMap((page) => page.data);
          return batches.length === 0 ? (
            <Empty title="No batches" command="tenora batch run requests.jsonl --model ADAPTER">
              <p>A batch answers a file of requests at a lower priority, and for the price of batches.</p>
            </Empty>
          ) : (
            <BatchTable batches={batches} actions={(batch) => <BatchActions batch={batch} />} />
          );
        }}
      </Loaded>
      {query.hasNextPage && (
        <p>
          <button type="button" onClick={() => void query.fetchNextPage()}>
            Show more
          </button>
        </p>
      )}
      {creating && <CreateBatch onClose={() => setCreating(false)} />}
    </>
  );
}

function BatchActions({ batch }: { batch: Batch }) {
  const cancel = useMutation({
    mutationFn: () => api.POST("/v1/batches/{batch_id}/cancel", { params: { path: { batch_id: batch.id } } }),
  });
  return (
    <div className="row">
      {!ENDED.has(batch.status) && (
        <button type="button" className="small" aria-label={`Cancel ${batch.id}`} onClick={() => cancel.mutate()}>
          Cancel
        </button>
      )}
      <FileButton text="Answers" file={batch.output_file_id} batch={batch.id} />
      <FileButton text="Errors" file={batch.error_file_id} batch={batch.id} />
      {cancel.error !== null && <ErrorNotice error={cancel.error} />}
    </div>
  );
}

function FileButton({ text, file, batch }: { text: string; file: string | null; batch: string }) {
  const save = useMutation({
    mutationFn: async (id: string) => {
      const response = await fetch(`/v1/files/${encodeURIComponent(id)}/content`, { headers: CONSOLE_HEADERS });
      if (!response.ok) throw await errorOf(response);
      download(`${batch}-${text.toLowerCase()}.jsonl`, await response.text(), "application/jsonl");
    },
  });
  if (file === null) return null;
  return (
    <>
      <button type="button" className="small" aria-label={`${text} of ${batch}`} onClick={() => save.mutate(file)}>
        {text}
      </button>
      {save.error !== null && <ErrorNotice error={save.error} />}
    </>
  );
}

function CreateBatch({ onClose }: { onClose: () => void }) {
  const [file, setFile] = useState<File | null>(null);
  const [model, setModel] = useState("");

  async function create() {
    if (file === null) return;
    const form = new FormData();
    form.append("purpose", "batch");
    form.append("file", file);
    const response = await fetch("/v1/files", { method: "POST", body: form, headers: CONSOLE_HEADERS });
    if (!response.ok) throw await errorOf(response);
    const { id } = (await response.json()) as Schemas["File"];
    await api.POST("/v1/batches", {
      body: {
        input_file_id: id,
        endpoint: await endpointOf(file),
        completion_window: "24h",
        tenora: model.trim() === "" ? null : { model: model.trim() },
      },
    });
  }

  return (
    <ActionDialog
      title="Create a batch"
      submit="Upload and create"
      disabled={file === null}
      action={create}
      onClose={onClose}
    >
      <FileField
        label="File of requests (.jsonl)"
        accept=".jsonl"
        hint="One request a line, as for OpenAI's batches."
        onFiles={(files) => setFile(files[0] ?? null)}
      />
      <Field label="Model" value={model} onValue={setModel} hint="Empty: each line names its model." />
    </ActionDialog>
  );
}

/** Return the endpoint that the first request names. */
async function endpointOf(file: File): Promise<string> {
  const [line = ""] = (await file.slice(0, 1 << 20).text()).split("\n", 1);
  try {
    const request: unknown = JSON.parse(line);
    if (typeof request === "object" && request !== null && "url" in request) return String(request.url);
  } catch {
    // The server names the lines that are no JSON.
  }
  return "/v1/chat/completions";
}
